"""Stopping all ranks after the same step, and what follows if that fails."""

from __future__ import annotations

from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, started, training


def test_a_failure_cancels_a_barrier_and_takes_the_newcomers_along() -> None:
    """The recovery is the rescale; the incident is the failure's."""
    job = training(2)
    job.ask(wire.ScaleRequest(replicas=3))
    job.time.run(job.time.now + 5.0, lambda: job.is_in("SAVING"))
    job.agents[1].crash_worker()
    job.run(1.0)
    assert job.members == [0, 1, 2]
    job.run(12.0)
    incidents = job.incidents
    assert [item.cause for item in incidents] == ["WorkerCrashed"]
    assert job.charges() == [wire.BudgetKind.FAILURES]


def test_a_script_without_the_sdk_is_restarted_and_says_so() -> None:
    """No barrier: its own checkpoint, an event, degraded progress in the status."""
    job = started(2, agents={"sdk": False})
    assert job.status.degraded_progress
    assert "StepsUnknown" in job.reasons()
    job.run(2.0)
    job.operator.change(replicas=3)
    job.agents[2].sdk = False
    job.run(10.0)
    assert job.members == [0, 1, 2]
    assert {"BarrierMissed", "RolledBack"} <= set(job.reasons())


def deaf(job: SteeredJob, *ranks: int) -> None:
    """These agents do not get barriers."""
    for rank in ranks:
        job.agents[rank].ignores += (wire.SetBarrier,)


def test_a_barrier_that_nobody_sees_is_given_up() -> None:
    """Three tries, then a restart with a roll-back."""
    job = training(3)
    deaf(job, 0, 1, 2)
    job.ask(wire.DrainNodeRequest(node_rank=1))
    job.run(30.0)
    assert job.reasons().count("BarrierSet") == 3
    assert "BarrierMissed" in job.reasons()
    assert job.members == [0, 2]


def test_a_barrier_that_one_node_misses_ends_at_its_deadline() -> None:
    """Some have stopped; nobody waits for ever."""
    job = training(3)
    agent = job.agents[0]
    agent.save_seconds = float("inf")
    job.ask(wire.DrainNodeRequest(node_rank=1))
    job.run(10.0)
    assert job.is_in("SAVING")
    job.run(30.0)
    assert "BarrierMissed" in job.reasons()
    assert job.is_in("TRAINING")
    assert job.members == [0, 2]


def barrier_of(job: SteeredJob) -> tuple[int, int]:
    """Id and step of the barrier that is on its way."""
    barrier = job.context.worlds.barrier
    assert barrier is not None
    return barrier.number, barrier.step


def test_a_barrier_that_came_too_late_is_set_anew_with_a_larger_margin() -> None:
    """A rank that saw it after its step: a new id, a later step."""
    job = training(2)
    deaf(job, 0, 1)
    job.ask(wire.DrainNodeRequest(node_rank=1))
    first, step = barrier_of(job)
    job.say(0, wire.BarrierAck(barrier_id=first, seen_at_step=step + 5))
    second, later = barrier_of(job)
    assert second > first
    assert later > step + 5
    job.say(0, wire.BarrierAck(barrier_id=first, seen_at_step=step + 9))
    assert barrier_of(job) == (second, later)


def test_ranks_that_stop_at_different_steps_are_told() -> None:
    """The next world restores what is complete; people learn of it."""
    job = training(2)
    deaf(job, 0, 1)
    job.ask(wire.DrainNodeRequest(node_rank=1))
    barrier, step = barrier_of(job)
    for rank, at in ((0, step), (1, step + 1)):
        job.say(rank, wire.BarrierReached(barrier_id=barrier, step=at))
    assert "BarrierMissed" in job.reasons()


def test_a_barrier_that_nobody_asked_for_is_no_barrier() -> None:
    """The node's processes are gone: after a second that is an incident."""
    job = training(2)
    job.say(0, wire.BarrierReached(barrier_id=7, step=5))
    job.run(1.5)
    causes = [item.cause for item in job.incidents]
    assert causes == ["WorkersMissing"]


def test_a_barrier_that_was_lost_with_its_stream_is_no_failure() -> None:
    """The node comes back without its processes and cannot say that it saved."""
    job = training(3)
    agent = job.agents[0]
    agent.save_seconds = float("inf")
    job.ask(wire.DrainNodeRequest(node_rank=1))
    job.run(3.0)
    agent.workers.lose()
    agent.blip()
    job.run(15.0)
    assert job.is_in("TRAINING")
    assert job.charges() == []


def test_a_saved_node_that_dies_does_not_disturb_the_barrier() -> None:
    """It had stopped already; the world that follows does without it."""
    job = training(4, replaces=False)
    slow = job.agents[3]
    slow.save_seconds = 2.0
    job.ask(wire.DrainNodeRequest(node_rank=1))
    job.time.run(job.time.now + 10.0, lambda: len(job.context.worlds.newest.saved) == 3)  # type: ignore[union-attr]
    job.agents[2].crash()
    job.run(0.5)
    assert job.is_in("SAVING")
    job.run(6.0)
    assert job.members == [0, 3]
