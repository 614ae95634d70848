"""Pods that end before their agent has joined: what failure rules and budgets make of it."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast_master.inputs import OperatorMessage
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec, training


def _rule(action: wire.FailureAction, *codes: int, **more: object) -> wire.FailureRule:
    return wire.FailureRule(action=action, exit_codes=codes, **more)  # type: ignore[arg-type]


def _ended(uid: str = "p", code: int = 42, **more: object) -> wire.PodObservation:
    fields: dict[str, object] = {
        "node_rank": 0,
        "pod_uid": uid,
        "name": uid,
        "phase": wire.PodPhase.FAILED,
        "exit_code": code,
        "node": "n1",
        **more,
    }
    return wire.PodObservation(**fields)  # type: ignore[arg-type]


def test_a_rule_that_fails_the_job_is_looked_at_before_any_agent_joined() -> None:
    """The first pod ends it: a wrong command need not be tried again."""
    job = SteeredJob(job_spec(failure_rules=(_rule(wire.FailureAction.FAIL_JOB, 42),)))
    job.take(OperatorMessage(_ended(code=41)))
    job.run(1.0)
    assert job.is_in("WAITING")
    job.take(OperatorMessage(_ended("q")))
    job.run(1.0)
    assert job.end == "FailJobRule"
    assert job.status.text == (
        "failurePolicy.rules[0] matches: exit code 42: q of node 0 ended with exit code 42 before "
        "its agent joined"
    )


def test_it_is_looked_at_beside_a_world_that_trains() -> None:
    """The pod of one more node: the rule speaks of the job, not of a world."""
    job = training(2, failure_rules=(_rule(wire.FailureAction.FAIL_JOB, 42),))
    job.operator.come_back()
    job.take(OperatorMessage(_ended(node_rank=7)))
    job.run(40.0)
    assert job.end == "FailJobRule"


def test_what_ended_before_a_master_without_a_journal_began_is_not_judged() -> None:
    """Its agent may have joined the master before, and left as it was told to."""
    job = training(2, failure_rules=(_rule(wire.FailureAction.FAIL_JOB, 42),))
    job.pods[7] = _ended(node_rank=7)
    job.restart_master(1.0, journal=False)
    job.operator.come_back()
    job.run(40.0)
    assert job.is_in("TRAINING")
    job.operator.leave()
    job.operator.come_back()
    job.run(40.0)
    assert job.is_in("TRAINING")


@pytest.mark.parametrize("code", [1, -15])
def test_a_node_that_was_told_to_leave_may_end_as_it_likes(code: int) -> None:
    """A script that is scaled away may end with 1 or by SIGTERM: nothing has failed."""
    rule = wire.FailureRule(
        action=wire.FailureAction.FAIL_JOB, exit_codes=(0,), exit_codes_not_in=True
    )
    job = training(3, min_replicas=1, failure_rules=(rule,))
    job.operator.change(replicas=2)
    job.run_until("TRAINING")
    job.run(40.0)
    assert sorted(job.members) == [0, 1]
    gone = job.agents[2]
    ended = _ended(gone.pod_uid, code, node_rank=2, wanted=True)
    job.take(OperatorMessage(ended))
    job.take(OperatorMessage(dataclasses.replace(ended, wanted=False)))
    job.run(40.0)
    assert (job.members, job.end, job.charges()) == ([0, 1], "", [])


def test_the_first_rule_that_matches_counts() -> None:
    """As for nodes that were known."""
    rules = (_rule(wire.FailureAction.IGNORE, 42), _rule(wire.FailureAction.FAIL_JOB, 42))
    job = SteeredJob(job_spec(failure_rules=rules))
    job.take(OperatorMessage(_ended()))
    job.run(1.0)
    assert (job.end, job.charges()) == ("", [])


def test_a_pod_that_is_to_be_ignored_spends_nothing() -> None:
    """Neither restarts without progress nor, where its node was taken away, preemptions."""
    disrupted = wire.FailureRule(
        action=wire.FailureAction.IGNORE, pod_conditions=("DisruptionTarget=True",)
    )
    job = SteeredJob(job_spec(failure_rules=(disrupted, _rule(wire.FailureAction.IGNORE, 42))))
    job.take(OperatorMessage(_ended()))
    job.take(OperatorMessage(_ended("q", 137, conditions=("DisruptionTarget=True",))))
    assert job.charges() == []
    assert job.reasons().count("PodFailed") == 2


def test_a_node_whose_pods_end_so_is_avoided_where_a_rule_says_it() -> None:
    """The next pod is made elsewhere, and the end is charged as ever."""
    job = SteeredJob(job_spec(failure_rules=(_rule(wire.FailureAction.REPLACE_ON_OTHER_NODE, 42),)))
    job.take(OperatorMessage(_ended()))
    assert job.status.excluded_nodes == ("n1",)
    assert job.charges() == [wire.BudgetKind.NO_PROGRESS]


@pytest.mark.parametrize("reason", ["NodeShutdown", "Evicted", "InitContainerFailed"])
def test_no_rule_about_exit_codes_matches_an_end_without_one(reason: str) -> None:
    """A node's exit code is made up; a failed init container's is not the training's."""
    code = 0 if reason == "InitContainerFailed" else 42
    rule = wire.FailureRule(
        action=wire.FailureAction.FAIL_JOB, exit_codes=(7,), exit_codes_not_in=True
    )
    job = SteeredJob(job_spec(failure_rules=(rule,)))
    job.take(OperatorMessage(_ended(code=code, reason=reason)))
    job.run(1.0)
    assert not job.end


def test_what_an_earlier_master_has_judged_is_not_judged_again() -> None:
    """A rule that came later is about what comes later."""
    job = SteeredJob(job_spec())
    job.take(OperatorMessage(_ended()))
    assert job.charges() == [wire.BudgetKind.NO_PROGRESS]
    job.operator.change(failure_rules=(_rule(wire.FailureAction.FAIL_JOB, 42),))
    job.restart_master()
    job.operator.come_back()
    job.take(OperatorMessage(_ended()))
    job.run(1.0)
    assert (job.end, job.charges()) == ("", [wire.BudgetKind.NO_PROGRESS])


def _as_in_a_cluster(**changes: object) -> SteeredJob:
    """The first master of a job whose epochs begin far above 1, so that it may follow another."""
    job = SteeredJob(job_spec(**changes))
    job.start_master(journal=False)
    return job


def test_a_rule_fails_a_job_that_no_agent_ever_joined() -> None:
    """The master waits for nodes of a world before it, for ever: that hides no rule."""
    job = _as_in_a_cluster(failure_rules=(_rule(wire.FailureAction.FAIL_JOB, 42),))
    job.pods[0] = _ended(phase=wire.PodPhase.RUNNING, code=0)
    job.operator.come_back()
    job.run(5.0)
    job.take(OperatorMessage(_ended()))
    job.run(1.0)
    assert job.end == "FailJobRule"


def test_a_pod_that_an_earlier_master_may_have_known_spends_nothing() -> None:
    """Its agent may have trained under it; the one that follows it counts."""
    job = _as_in_a_cluster()
    job.pods[0] = _ended(phase=wire.PodPhase.RUNNING, code=0)
    job.operator.come_back()
    job.take(OperatorMessage(_ended()))
    assert job.charges() == []
    job.take(OperatorMessage(_ended("q")))
    assert job.charges() == [wire.BudgetKind.NO_PROGRESS]


@pytest.mark.parametrize("cluster", [False, True])
def test_pods_that_end_so_again_and_again_end_the_job(cluster: bool) -> None:  # noqa: FBT001
    """Without a rule the budget of restarts without progress does."""
    budgets = (wire.Budget(kind=wire.BudgetKind.NO_PROGRESS, limit=5),)
    job = _as_in_a_cluster(budgets=budgets) if cluster else SteeredJob(job_spec(budgets=budgets))
    job.operator.come_back()
    for number in range(6):
        assert job.is_in("WAITING")
        job.take(OperatorMessage(_ended(f"p{number}")))
        job.run(10.0)
    assert job.end == "NoProgress"
