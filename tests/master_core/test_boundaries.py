"""Stopping all ranks after the same step, and what follows if that fails."""

from __future__ import annotations

from collections.abc import Callable

from holdfast_master.inputs import Received
from holdfast_wire.messages import (
    Arm,
    ArmEcho,
    BoundaryReached,
    BudgetKind,
    DrainNodeRequest,
    Fence,
    ScaleRequest,
)
from simulated_job import SimulatedJob, job_spec

Start = Callable[..., SimulatedJob]


def test_a_failure_cancels_a_boundary_and_takes_the_newcomers_along(training: Start) -> None:
    """The recovery is the rescale; the incident is the failure's."""
    job = training(2)
    job.ask(ScaleRequest(replicas=3))
    job.time.run(job.time.now + 5.0, lambda: job.is_in("SAVING"))
    job.agents[1].crash_worker()
    job.run(1.0)
    assert job.members == [0, 1, 2]
    job.run(12.0)
    incidents = job.core.goodput(job.moment()).incidents
    assert [item.cause for item in incidents] == ["WorkerCrashed"]
    assert job.charges() == [BudgetKind.FAILURES]


def test_a_script_without_the_sdk_is_restarted_and_says_so() -> None:
    """No boundary: its own checkpoint, an event, degraded progress in the status."""
    job = SimulatedJob(job_spec(replicas=2))
    job.add_agents(2, sdk=False)
    job.run_until("TRAINING")
    assert job.core.status(job.moment()).degraded_progress
    assert "StepsUnknown" in job.reasons()
    job.run(2.0)
    job.change(replicas=3)
    job.agents[2].sdk = False
    job.run(10.0)
    assert job.members == [0, 1, 2]
    assert {"BoundaryMissed", "RolledBack"} <= set(job.reasons())


def deaf(job: SimulatedJob, *ranks: int) -> None:
    """These agents do not get arms."""
    for rank in ranks:
        agent = job.agents[rank]
        take = agent.receive

        def receive(session: int, response: object, take: object = take) -> None:
            if not isinstance(response.message, Arm):  # type: ignore[attr-defined]
                take(session, response)  # type: ignore[operator]

        agent.receive = receive  # type: ignore[method-assign]


def test_an_arm_that_nobody_sees_is_given_up(training: Start) -> None:
    """Three tries, then a restart with a roll-back."""
    job = training(3)
    deaf(job, 0, 1, 2)
    job.ask(DrainNodeRequest(node_rank=1))
    job.run(30.0)
    assert job.reasons().count("BoundaryArmed") == 3
    assert "BoundaryMissed" in job.reasons()
    assert job.members == [0, 2]


def test_a_boundary_that_one_node_misses_ends_at_its_deadline(training: Start) -> None:
    """Some have stopped; nobody waits for ever."""
    job = training(3)
    agent = job.agents[0]
    agent._save = lambda step: None  # type: ignore[method-assign]
    job.ask(DrainNodeRequest(node_rank=1))
    job.run(10.0)
    assert job.is_in("SAVING")
    job.run(30.0)
    assert "BoundaryMissed" in job.reasons()
    assert job.is_in("TRAINING")
    assert job.members == [0, 2]


def arm_of(job: SimulatedJob) -> tuple[int, int]:
    """Id and step of the boundary that is on its way."""
    boundary = job.core._desk.boundary
    assert boundary is not None
    return boundary.arm_id, boundary.step


def test_an_arm_that_came_too_late_is_set_anew_with_a_larger_margin(training: Start) -> None:
    """A rank that saw it after its step: a new id, a later step."""
    job = training(2)
    deaf(job, 0, 1)
    job.ask(DrainNodeRequest(node_rank=1))
    first, step = arm_of(job)
    session = job.agents[0].session
    assert session is not None
    fence = Fence(epoch=1, incarnation="m1", round=1)
    job.take(Received(session, fence, ArmEcho(arm_id=first, seen_at_step=step + 5)))
    second, later = arm_of(job)
    assert second > first
    assert later > step + 5
    job.take(Received(session, fence, ArmEcho(arm_id=first, seen_at_step=step + 9)))
    assert arm_of(job) == (second, later)


def test_ranks_that_stop_at_different_steps_are_told(training: Start) -> None:
    """The next world restores what is complete; people learn of it."""
    job = training(2)
    deaf(job, 0, 1)
    job.ask(DrainNodeRequest(node_rank=1))
    arm, step = arm_of(job)
    for rank, at in ((0, step), (1, step + 1)):
        session = job.agents[rank].session
        assert session is not None
        fence = Fence(epoch=1, incarnation="m1", round=1)
        job.take(Received(session, fence, BoundaryReached(arm_id=arm, step=at)))
    assert "BoundaryMissed" in job.reasons()


def test_a_boundary_that_nobody_asked_for_is_no_boundary(training: Start) -> None:
    """The node's processes are gone: after a second that is an incident."""
    job = training(2)
    session = job.agents[0].session
    assert session is not None
    fence = Fence(epoch=1, incarnation="m1", round=1)
    job.take(Received(session, fence, BoundaryReached(arm_id=7, step=5)))
    job.run(1.5)
    causes = [item.cause for item in job.core.goodput(job.moment()).incidents]
    assert causes == ["WorkersMissing"]


def test_a_boundary_that_was_lost_with_its_stream_is_no_failure(training: Start) -> None:
    """The node comes back without its processes and cannot say that it saved."""
    job = training(3)
    agent = job.agents[0]
    agent._save = lambda step: None  # type: ignore[method-assign]
    job.ask(DrainNodeRequest(node_rank=1))
    job.run(3.0)
    job.training.leave(1, 0, agent.agent_id, job.time.now)
    agent.round = 0
    agent.blip()
    job.run(15.0)
    assert job.is_in("TRAINING")
    assert job.charges() == []


def test_a_saved_node_that_dies_does_not_disturb_the_boundary(training: Start) -> None:
    """It had stopped already; the world that follows does without it."""
    job = training(4)
    job.replaces = False
    slow = job.agents[3]
    keep = slow._save
    slow._save = lambda step: job.time.after(2.0, lambda: keep(step))  # type: ignore[method-assign]
    job.ask(DrainNodeRequest(node_rank=1))
    job.time.run(job.time.now + 10.0, lambda: len(job.core._desk.world.saved) == 3)  # type: ignore[union-attr]
    job.agents[2].crash()
    job.run(0.5)
    assert job.is_in("SAVING")
    job.run(6.0)
    assert job.members == [0, 3]
