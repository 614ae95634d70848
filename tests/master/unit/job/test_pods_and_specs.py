"""Reports of the operator: pods, lists, specs, in any order."""

from __future__ import annotations

import dataclasses

from holdfast_master.inputs import OperatorMessage
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec, training


def test_news_of_an_older_pod_does_not_touch_the_newer() -> None:
    """A superseded pod's end arrives after its successor has joined."""
    job = training(3)
    old = job.pods[1]
    job.agents[1].crash(told=False)
    job.add_agent(1)
    job.run(3.0)
    gone = wire.PodObservation(
        node_rank=1,
        pod_uid=old.pod_uid,
        phase=wire.PodPhase.FAILED,
        exit_code=1,
        conditions=("DisruptionTarget=True",),
    )
    job.take(OperatorMessage(gone))
    job.run(15.0)
    assert sorted(job.members) == [0, 1, 2]
    assert job.charges()[0] is wire.BudgetKind.PREEMPTIONS


def test_a_newer_pod_of_a_rank_ends_the_agent_of_the_older() -> None:
    """Seen by the operator before the newer agent says hello."""
    job = training(3)
    newer = wire.PodObservation(node_rank=1, pod_uid="newer", phase=wire.PodPhase.PENDING)
    job.take(OperatorMessage(newer))
    assert 1 not in job.context.membership.nodes
    assert job.incidents[-1].cause == "AgentReplaced"


def test_nodes_of_the_journal_whose_pods_are_gone_are_lost_at_once() -> None:
    """A new master, and an operator that lists every pod."""
    job = training(3)
    job.operator.leave()
    job.kill_master()
    job.agents[1].crash(told=False)
    job.run(0.5)
    job.start_master()
    del job.pods[1]
    job.replaces = False
    job.operator.come_back()
    job.run(1.0)
    assert job.members == [0, 2]
    job.take(OperatorMessage(wire.PodListDone()))


def test_each_pod_that_fails_is_replaced_once() -> None:
    """The replacement's own end is another wish."""
    job = training(3, replaces=False)
    job.agents[1].crash()
    job.run(1.0)
    job.add_agent(1)
    job.run(0.1)
    job.agents[1].crash()
    job.run(1.0)
    assert job.reasons().count("ReplaceRequested") == 2


def test_an_excluded_host_is_told_to_a_new_operator_stream() -> None:
    """Excluded once, repeated to whoever watches; its nodes are no candidates."""
    rules = (wire.FailureRule(action=wire.FailureAction.REPLACE_ON_OTHER_NODE, exit_codes=(9,)),)
    job = training(3, failure_rules=rules, replaces=False)
    for rank in (1, 2):
        job.pods[rank] = wire.PodObservation(
            node_rank=rank,
            pod_uid=job.agents[rank].pod_uid,
            phase=wire.PodPhase.RUNNING,
            node="bad",
        )
        job.take(OperatorMessage(job.pods[rank]))
    job.agents[1].crash_worker(9)
    job.run(1.0)
    assert job.is_in("WAITING")
    assert job.status.ready_nodes == 1
    job.agents[2].crash_worker(9)
    job.operator.leave()
    job.operator.come_back()
    assert job.status.excluded_nodes == ("bad",)


def test_every_node_on_an_excluded_host_gets_another_pod() -> None:
    """Not the culprit's alone: nobody else would bring the others back."""
    rules = (wire.FailureRule(action=wire.FailureAction.REPLACE_ON_OTHER_NODE, exit_codes=(9,)),)
    job = training(3, failure_rules=rules)
    before = {rank: job.agents[rank].pod_uid for rank in (0, 1, 2)}
    for rank in (1, 2):
        job.pods[rank] = dataclasses.replace(job.pods[rank], node="bad")
        job.take(OperatorMessage(job.pods[rank]))
    job.agents[1].crash_worker(9)
    job.run(20.0)
    assert sorted(job.members) == [0, 1, 2]
    same = {rank for rank, uid in before.items() if job.agents[rank].pod_uid == uid}
    assert same == {0}
    assert job.charges() == [wire.BudgetKind.FAILURES]


def test_a_culprit_that_is_gone_already_is_not_drained() -> None:
    """The rule matches the pod's own end."""
    rules = (wire.FailureRule(action=wire.FailureAction.REPLACE_POD, exit_codes=(137,)),)
    job = training(3, failure_rules=rules)
    job.agents[1].crash(-9)
    job.run(20.0)
    assert sorted(job.members) == [0, 1, 2]
    assert job.charges() == [wire.BudgetKind.FAILURES]


def test_an_older_or_equal_spec_is_ignored() -> None:
    """Only a newer generation counts."""
    job = training(2)
    before = job.core.newest_event()
    job.take(OperatorMessage(job_spec(generation=1, replicas=5)))
    job.take(OperatorMessage(job_spec(generation=0, replicas=5)))
    assert job.core.newest_event() == before
    assert job.status.replicas == 2


def test_agents_follow_an_edit_of_health_and_of_rules() -> None:
    """Rules keep their places: an exit that is on its way names them by index."""
    old = wire.FailureRule(action=wire.FailureAction.FAIL_JOB, log_pattern="old")
    new = wire.FailureRule(action=wire.FailureAction.REPLACE_POD, log_pattern="new")
    health = wire.HealthPolicy(hang=wire.HangPolicy(mode=wire.HealthMode.REPORT, min_seconds=60))
    job = training(3, failure_rules=(old,))
    job.raises = 0.0  # the exit that counts is the one that this test makes
    job.operator.change(failure_rules=(new,), health=health)
    job.run(0.5)
    welcomes = [job.agents[rank].welcome for rank in (0, 1, 2)]
    assert [one.failure_rules for one in welcomes] == [(old, new)] * 3
    assert [one.health for one in welcomes] == [health] * 3
    job.agents[1].matched = (0,)
    job.agents[1].crash_worker(1)
    job.run(5.0)
    assert sorted(job.members) == [0, 1, 2], "a rule that is in force no longer ends no job"
    job.agents[2].matched = (1,)
    job.agents[2].crash_worker(1)
    job.run(1.0)
    assert "ReplaceRequested" in job.reasons()


def test_a_new_limit_can_save_or_end_a_job_that_hangs_in_the_balance() -> None:
    """Budgets are read anew while an incident is open."""
    job = training(2, budgets=(wire.Budget(kind=wire.BudgetKind.FAILURES, limit=0),))
    job.raises = 0.0
    job.agents[0].crash_worker()
    job.run(0.5)
    assert job.is_in("WAITING")
    job.operator.change(budgets=(wire.Budget(kind=wire.BudgetKind.FAILURES, limit=9),))
    job.run(2.0)
    assert job.is_in("TRAINING")


def test_a_new_deadline_below_the_minimum_begins_anew() -> None:
    """A person gave the job more time."""
    job = SteeredJob(job_spec(below_min_timeout_seconds=5.0))
    job.run(4.0)
    job.operator.change(below_min_timeout_seconds=50.0, replicas=0)
    job.run(10.0)
    assert not job.end


def test_the_operator_may_come_back_without_having_gone() -> None:
    """A second stream replaces the first."""
    job = training(2)
    job.operator.come_back()
    assert job.reasons().count("OperatorConnected") == 1


def test_a_pod_that_fails_before_its_agent_joins_is_an_event() -> None:
    """Once for each pod, with its last words."""
    job = training(2)
    for uid in ("early-1", "early-1", "early-2"):
        pod = wire.PodObservation(
            node_rank=7,
            pod_uid=uid,
            name=uid,
            phase=wire.PodPhase.FAILED,
            exit_code=2,
            text="usage: train.py [--lr LR]\nerror: unrecognized --x\n",
        )
        job.take(OperatorMessage(pod))
    told = job.texts("PodFailed")
    assert told == [
        f"{uid} of node 7 ended with exit code 2 before its agent joined; its last words: "
        "error: unrecognized --x"
        for uid in ("early-1", "early-2")
    ]


def test_a_pod_that_succeeds_without_an_agent_is_an_event_that_names_the_remedy() -> None:
    """`command: [python, train.py]`: nothing follows, and nobody would know why."""
    job = SteeredJob(job_spec())
    ended = wire.PodObservation(node_rank=0, pod_uid="p", name="p", phase=wire.PodPhase.SUCCEEDED)
    job.take(OperatorMessage(ended))
    job.take(OperatorMessage(ended))
    (told,) = job.texts("PodFailed")
    assert told.startswith("p of node 0 ended with exit code 0 before its agent joined")
    assert "holdfast-run" in told
    assert not job.charges()


def test_a_pod_that_was_being_deleted_before_its_agent_joined_is_no_failure() -> None:
    """An operator that was killed after the deletion cannot say that it was its own."""
    job = SteeredJob(job_spec())
    ended = wire.PodObservation(
        node_rank=0,
        pod_uid="p",
        name="p",
        phase=wire.PodPhase.FAILED,
        exit_code=137,
        terminating=True,
    )
    for pod in (ended, dataclasses.replace(ended, phase=wire.PodPhase.GONE)):
        job.take(OperatorMessage(pod))
    assert "PodFailed" not in job.reasons()
    assert not job.charges()
    job.take(OperatorMessage(dataclasses.replace(ended, pod_uid="q", terminating=False)))
    assert job.charges() == [wire.BudgetKind.NO_PROGRESS], "one that ends by itself is"
