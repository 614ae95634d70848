"""Hangs under mode Act: the incident, the next round, nodes that leave, and the bounds."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast_master.inputs import OperatorMessage
from holdfast_wire import messages as wire
from holdfast_wire.reasons import Cause, EventReason
from simulation.steered.hangs import (
    ACT,
    GONE,
    LOADS,
    SAVES,
    STOPPED,
    STUCK,
    WAITS,
    answer,
    failures,
    stand_still,
)
from simulation.steered.job import SteeredJob, training


def _hosts(job: SteeredJob) -> None:
    for rank in job.agents:
        job.pods[rank] = dataclasses.replace(job.pods[rank], node=f"gpu-{rank}")
        job.take(OperatorMessage(job.pods[rank]))


def test_odd_ranks_are_restarted_on_their_nodes() -> None:
    """After the evidence, as one failure with its own cause."""
    job = training(3, health=ACT)
    order = stand_still(job)
    assert not failures(job)
    answer(job, order, {1: STOPPED})
    job.run(15.0)
    assert failures(job) == [("Hung", "1")]
    assert job.members == [0, 1, 2]
    assert job.status.round == 2
    assert job.charges() == [wire.BudgetKind.FAILURES]
    (text,) = job.texts(EventReason.INCIDENT_OPENED)
    assert "hang: stopped: rank 1" in text
    assert job.reasons().count("NodeDraining") == 0


def test_ranks_of_two_nodes_that_contradict_each_other_are_laid_to_no_node() -> None:
    """One of the two left the path, and nothing tells which: no host gets a strike."""
    job = training(2, health=ACT)
    _hosts(job)
    answer(job, stand_still(job), {}, {1: "gloo:broadcast"})
    job.run(15.0)
    (text,) = job.texts(EventReason.HANG_FOUND)
    assert text.startswith("mismatched collective: rank 0 ")
    assert "; rank 1 " in text
    assert failures(job) == [("Hung", "")]
    assert job.status.round == 2
    assert not job.state.strikes


def test_the_incident_that_ended_the_world_names_the_one_with_the_stacks() -> None:
    """The hang was reported first, and is over with its world."""
    job = training(3, health=ACT)
    answer(job, stand_still(job), {1: STOPPED})
    job.run(15.0)
    listed = {one.cause: one for one in job.core.incidents(job.moment())}
    hang, hung = listed[Cause.HANG], listed[Cause.HUNG]
    assert f"incident {hang.id} has the stacks" in hung.text
    assert (hang.open, hang.charged) == (False, wire.BudgetKind.UNSPECIFIED)
    assert hang.decided_seconds > 0


def test_a_world_is_not_ended_before_its_evidence_is_there() -> None:
    """As long as one node may still answer."""
    job = training(3, health=ACT)
    order = stand_still(job)
    for node in (0, 1):
        agent = job.agents[node]
        seen = dataclasses.replace(STOPPED if node == 1 else WAITS, rank=node)
        agent.report(wire.EvidenceCollected(command_id=order.command_id, ranks=(seen,)), 1)
    job.run(2.0)
    assert not failures(job)
    job.run(15.0)
    assert failures(job) == [("Hung", "1")]


def test_a_world_that_went_on_while_evidence_was_awaited_is_left_alone() -> None:
    """Its ranks are at work again although the evidence names one of them."""
    job = training(3, health=ACT)
    order = stand_still(job)
    job.agents[0].workers.pause(paused=False)
    answer(job, order, {1: STOPPED})
    job.run(30.0)
    assert not failures(job)
    assert job.status.round == 1


def test_a_node_in_d_state_is_left_and_its_host_avoided() -> None:
    """Its process cannot be killed: the others go on, and another pod is asked for."""
    job = training(3, min_replicas=2, health=ACT)
    _hosts(job)
    before = job.agents[2].pod_uid
    order = stand_still(job)
    answer(job, order, {2: STUCK})
    job.run(2.0)
    assert job.members == [0, 1]
    assert failures(job) == [("Hung", "2")]
    assert "SIGKILL may not end it" in job.texts(EventReason.INCIDENT_OPENED)[0]
    assert job.status.excluded_nodes == ("gpu-2",)
    job.run(40.0)
    assert job.agents[2].pod_uid != before
    assert sorted(job.members) == [0, 1, 2]
    assert job.charges() == [wire.BudgetKind.FAILURES]


def test_an_agent_without_its_process_is_replaced() -> None:
    """Its host is as good as any."""
    job = training(3, min_replicas=2, health=ACT)
    _hosts(job)
    before = job.agents[2].pod_uid
    answer(job, stand_still(job), {2: GONE})
    job.run(40.0)
    assert job.agents[2].pod_uid != before
    assert sorted(job.members) == [0, 1, 2]
    assert not job.status.excluded_nodes


def test_a_hang_of_nobody_is_restarted_once() -> None:
    """The second time at the same step the world is left alone, and people are told."""
    job = training(2, health=ACT)
    order = stand_still(job)
    job.agents[0].workers.paused = True  # and so do those of the next round
    answer(job, order, {})
    job.run(5.0)
    assert failures(job) == [("Hung", "")]
    answer(job, stand_still(job), {})
    job.run(60.0)
    assert failures(job) == [("Hung", "")]
    (text,) = job.texts(EventReason.HANG_LEFT)
    assert "a restart has not helped" in text
    assert job.status.round == 2


def test_hangs_that_come_back_spend_the_budget() -> None:
    """As failures do; then the job ends."""
    budgets = tuple(
        wire.Budget(kind=kind, limit=1 if kind is wire.BudgetKind.FAILURES else 1000)
        for kind in (
            wire.BudgetKind.FAILURES,
            wire.BudgetKind.PREEMPTIONS,
            wire.BudgetKind.RESCALES,
        )
    )
    job = training(2, health=ACT, budgets=budgets)
    for _ in range(2):
        job.run_until("TRAINING")
        job.run(12.0)
        answer(job, stand_still(job), {1: STOPPED})
        job.run(1.0)
    job.run(60.0)
    assert job.end == "FailureBudgetExhausted"


@pytest.mark.parametrize("mode", [wire.HealthMode.REPORT, wire.HealthMode.DISABLED])
def test_other_modes_end_nothing(mode: wire.HealthMode) -> None:
    """Report says it; Disabled does not look."""
    policy = dataclasses.replace(ACT.hang, mode=mode)  # type: ignore[type-var]
    job = training(2, health=wire.HealthPolicy(hang=policy))
    job.agents[0].workers.pause(paused=True)
    job.run(60.0)
    assert not failures(job)
    assert job.status.round == 1


@pytest.mark.parametrize("after", [0.0, 0.003, 0.3, 3.0])
def test_a_new_master_answers_a_hang_once(after: float) -> None:
    """Killed before, in or after the answer: one incident, one charge."""
    job = training(3, min_replicas=2, health=ACT)
    _hosts(job)
    answer(job, stand_still(job), {2: STUCK})
    job.run(after)
    job.restart_master(0.5)
    if not failures(job):
        answer(job, stand_still(job), {2: STUCK})
    job.run(60.0)
    assert failures(job) == [("Hung", "2")]
    assert job.charges() == [wire.BudgetKind.FAILURES]
    assert job.reasons().count("NodeExcluded") == 1
    assert sorted(job.members) == [0, 1, 2]


def test_what_all_ranks_wait_for_is_left_alone() -> None:
    """Each begins an epoch slowly: a restart would have them wait again."""
    job = training(3, health=ACT)
    answer(job, stand_still(job), dict.fromkeys(range(3), LOADS))
    job.run(60.0)
    assert not failures(job)
    assert "would meet the same" in job.texts(EventReason.HANG_LEFT)[0]
    assert job.status.round == 1


def test_a_save_whose_bytes_move_is_never_cut() -> None:
    """It is not even told before a first step would be; then it is told, and left alone."""
    job = training(3, health=ACT)
    began = job.moment().unix
    for _ in range(2):
        answer(job, stand_still(job), {1: SAVES})
        job.agents[0].workers.paused = True
    assert job.moment().unix - began > 60
    job.run(20.0)
    assert not failures(job)
    assert len(job.texts(EventReason.HANG_FOUND)) == 1
    assert "makes progress" in job.texts(EventReason.HANG_LEFT)[0]


def test_what_an_answer_has_cost_is_waited_before_the_next() -> None:
    """A wait of that length may end by itself, as each epoch's first batch does."""
    job = training(3, health=ACT)
    answer(job, stand_still(job), {1: LOADS})
    job.run(20.0)
    assert failures(job) == [("Hung", "1")]
    (first,) = job.context.health.answered
    assert first.cost_seconds > 8.0
    answer(job, stand_still(job), {1: LOADS})
    job.run(first.cost_seconds - 4.0)
    assert len(failures(job)) == 1
    job.run(10.0)
    assert len(failures(job)) == 2


def test_a_hang_that_comes_back_before_new_progress_is_answered_again() -> None:
    """Its first answer cost no more than until the second hang began: the budget decides."""
    job = training(3, health=ACT)
    order = stand_still(job)
    job.agents[0].workers.paused = True  # and so do those of the next round
    answer(job, order, {1: LOADS})
    job.run(5.0)
    assert failures(job) == [("Hung", "1")]
    answer(job, stand_still(job), {1: LOADS})
    job.run(40.0)
    assert failures(job) == [("Hung", "1")] * 2
    first, _ = job.context.health.answered
    assert first.cost_seconds < 20.0


def test_a_pause_that_ended_by_itself_is_known_in_the_next_world() -> None:
    """Its epochs begin as slowly."""
    policy = dataclasses.replace(ACT.hang, mode=wire.HealthMode.REPORT)  # type: ignore[type-var]
    job = training(3, health=wire.HealthPolicy(hang=policy))
    answer(job, stand_still(job), {1: LOADS})
    job.run(6.0)
    job.agents[0].workers.pause(paused=False)
    job.run(5.0)
    longest = job.context.health.hang_watch.learned.longest_pause
    assert longest > 12.0
    job.context.health.begin(2)
    assert job.context.health.hang_watch.learned.longest_pause == longest


def test_a_hang_lasts_from_the_last_step_on() -> None:
    """It was seen seconds later."""
    job = training(3, health=ACT)
    job.run(5.0)
    stopped = job.moment().unix
    answer(job, stand_still(job), {1: STOPPED})
    job.run(1.0)
    hang = next(one for one in job.core.incidents(job.moment()) if one.cause == Cause.HANG)
    assert hang.opened_unix == pytest.approx(stopped, abs=2.0)


def test_a_drain_during_a_reported_hang_tries_the_barrier() -> None:
    """The ranks may be at work that nobody has told, and then all save."""
    policy = dataclasses.replace(ACT.hang, mode=wire.HealthMode.REPORT)  # type: ignore[type-var]
    job = training(3, health=wire.HealthPolicy(hang=policy))
    answer(job, stand_still(job), {1: LOADS})
    job.run(3.0)
    assert job.texts(EventReason.HANG_FOUND)
    job.ask(wire.DrainNodeRequest(node_rank=1))
    assert "BarrierSet" in job.reasons()
    job.agents[0].workers.pause(paused=False)
    job.run(20.0)
    assert "BarrierMissed" not in job.reasons()
    assert job.members == [0, 2]


def test_a_job_that_hangs_is_stopped_without_a_barrier() -> None:
    """No rank comes to another step; and the hang is not over because the job stops."""
    policy = dataclasses.replace(ACT.hang, mode=wire.HealthMode.REPORT)  # type: ignore[type-var]
    job = training(3, health=wire.HealthPolicy(hang=policy))
    answer(job, stand_still(job), {1: STOPPED})
    job.run(3.0)
    job.ask(wire.StopJobRequest())
    job.run(8.0)
    assert "BarrierSet" not in job.reasons()
    assert not job.texts(EventReason.HANG_OVER)
    assert job.end == "StoppedByUser"
