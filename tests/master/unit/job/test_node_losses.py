"""Nodes that die, vanish, stand still, come back, are taken away or replaced."""

from __future__ import annotations

import pytest

from holdfast_master.inputs import OperatorMessage
from holdfast_wire import messages as wire
from simulation.steered.job import started, training


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_agent_that_dies_leaves_a_smaller_world_at_once(rank: int) -> None:
    """With evidence of its death nobody waits for silence; the first node is no exception."""
    job = training(3, replaces=False)
    job.agents[rank].crash()
    job.run(0.3)
    assert job.is_in("STARTING", "TRAINING")
    job.run_until("TRAINING", limit=1.0)
    assert job.members == [other for other in (0, 1, 2) if other != rank]
    job.run(12.0)
    found = job.incidents[-1]
    assert (found.cause, found.culprit_node) == ("PodFailed", str(rank))
    assert job.charges() == [wire.BudgetKind.FAILURES]


def test_a_blip_changes_nothing() -> None:
    """A stream that is back within a moment: no event, no round, no charge."""
    job = training(3)
    before = job.core.newest_event()
    job.agents[1].blip()
    job.run(3.0)
    assert job.core.newest_event() == before
    assert job.is_in("TRAINING")


def test_a_longer_break_is_news_and_nothing_more() -> None:
    """Away for two seconds: told, not restarted."""
    job = training(3)
    job.agents[1].cut_off()
    job.time.after(2.0, job.agents[1].reachable)
    job.run(5.0)
    assert job.reasons()[-2:] == ["NodeDisconnected", "NodeReconnected"]
    assert job.status.round == 1


def test_silence_without_evidence_takes_the_whole_limit() -> None:
    """Lost only after five seconds: by then its lease has killed its processes."""
    job = started(2, agents={"unmanaged": True}, operator_up=False, min_replicas=1)
    gone = job.time.now
    job.agents[1].freeze()
    job.run(4.4)
    assert job.is_in("TRAINING", "WAITING")
    job.time.run(gone + 20.0, lambda: job.members == [0])
    assert 4.4 < job.time.now - gone < 5.6
    assert job.stepping in ([], [2])
    job.run(1.0)
    job.agents[1].thaw()
    job.run(15.0)
    assert sorted(job.members) == [0, 1]
    causes = [item.cause for item in job.incidents]
    assert causes[0] == "AgentSilent"


def test_nobody_is_re_formed_while_a_member_may_be_alive() -> None:
    """A worker fails while another node is away: the recovery waits for a sign of it."""
    job = training(3)
    job.agents[2].cut_off()
    job.run(0.5)
    job.agents[0].crash_worker()
    job.run(1.0)
    assert job.is_in("WAITING")
    assert "AwaitingEvidence" in job.reasons()
    job.agents[2].reachable()
    job.run(2.0)
    assert job.is_in("TRAINING")
    assert job.members == [0, 1, 2]
    assert job.status.round == 2


def test_a_silent_member_is_waited_for_too() -> None:
    """Connected, but frozen: what its collective breaks in others waits for the verdict."""
    job = training(3, min_replicas=1, replaces=False)
    job.agents[2].freeze()
    job.run(2.0)
    job.agents[0].crash_worker(1, "RuntimeError")
    job.run(1.0)
    assert job.is_in("WAITING")
    job.run(8.0)
    assert job.members == [0, 1]
    assert job.status.round == 2


def test_below_the_minimum_the_survivors_stop_and_wait() -> None:
    """Then another node comes, and the training goes on."""
    job = training(2, replaces=False)
    job.agents[1].crash()
    job.run(1.0)
    assert job.is_in("WAITING")
    assert job.agents[0].round == 0
    job.operator.replace(1)
    job.run_until("TRAINING", limit=5.0)
    assert job.members == [0, 1]


def test_a_standby_takes_the_vacant_place_at_once() -> None:
    """At the same size the others keep their ranks."""
    job = training(3, standbys=1)
    job.add_agent(3)
    job.run(2.0)
    job.replaces = False
    job.agents[1].crash()
    job.run(1.5)
    assert job.members == [0, 3, 2]
    assert job.status.nodes_replaced == 1


def test_a_lost_node_is_replaced_and_joins_again() -> None:
    """The newcomer is warm before the world is disturbed, and no step is lost by it."""
    job = training(3)
    job.agents[1].crash()
    job.run(12.0)
    assert sorted(job.members) == [0, 1, 2]
    grown = job.incidents[-1]
    assert grown.cause == "Rescaled"
    assert job.status.nodes_replaced == 1
    assert grown.steps_redone == 0
    job.run(10.0)
    assert job.charges() == [wire.BudgetKind.FAILURES]


def test_an_evicted_node_is_charged_to_preemptions() -> None:
    """Its SIGTERM is a notice: the others save first, nothing is done again."""
    job = training(3)
    job.evict(1)
    job.run(25.0)
    assert job.charges() == [wire.BudgetKind.PREEMPTIONS]
    causes = [item.cause for item in job.incidents]
    assert causes[0] == "Preempted"
    assert (1, wire.LeaveOutcome.RELEASED) in job.outcomes
    assert sorted(job.members) == [0, 1, 2]
    assert job.status.nodes_disrupted == 1


def test_a_preemption_that_comes_late_still_spares_the_failure_budget() -> None:
    """The condition is seen only after the node was lost and the others train again."""
    job = training(3, replaces=False)
    agent = job.agents[1]
    agent.crash(told=False)
    job.run(7.0)
    assert job.members == [0, 2]
    gone = wire.PodObservation(
        node_rank=1,
        pod_uid=agent.pod_uid,
        phase=wire.PodPhase.FAILED,
        exit_code=137,
        conditions=("DisruptionTarget=True",),
    )
    job.take(OperatorMessage(gone))
    job.run(15.0)
    assert job.charges() == [wire.BudgetKind.PREEMPTIONS]
    assert job.incidents[0].cause == "Preempted"


def test_the_preemption_budget_ends_the_job() -> None:
    """With its own reason."""
    job = training(3, budgets=(wire.Budget(kind=wire.BudgetKind.PREEMPTIONS, limit=0),))
    job.evict(1)
    job.run(10.0)
    assert job.end == "PreemptionBudgetExhausted"


def test_a_pod_deleted_by_hand_is_a_preemption() -> None:
    """Gone without an exit code, and nobody asked for it."""
    job = training(3)
    agent = job.agents[2]
    agent.crash(told=False)
    job.operator.ended(agent, wire.PodPhase.GONE, 0)
    job.run(25.0)
    assert job.charges() == [wire.BudgetKind.PREEMPTIONS]


def test_a_node_that_the_operator_removes_is_not_charged() -> None:
    """Wanted deletions are no failures."""
    job = training(3, replaces=False)
    agent = job.agents[2]
    job.operator.mark(2, wanted=True)
    job.run(0.2)
    agent.crash(told=False)
    job.operator.ended(agent, wire.PodPhase.GONE, 0)
    job.run(25.0)
    assert job.charges() == []
    assert job.members == [0, 1]


def test_an_agent_that_leaves_by_itself_is_charged_as_a_rescale() -> None:
    """Nothing failed, nobody asked: the size changed."""
    job = training(3, replaces=False)
    job.agents[2].goodbye(terminated=False)
    job.run(15.0)
    assert job.charges() == [wire.BudgetKind.RESCALES]


def test_pods_that_a_new_list_does_not_name_do_not_exist() -> None:
    """The operator was away while a node died."""
    job = training(3)
    job.operator.leave()
    job.agents[1].crash(told=False)
    job.run(0.5)
    job.operator_up = True
    del job.pods[1]
    job.replaces = False
    job.operator.come_back()
    job.run(1.0)
    assert job.members == [0, 2]
    job.take(OperatorMessage(wire.PodListDone()))
