"""Growing, shrinking, draining: one boundary, no step done again."""

from __future__ import annotations

from collections.abc import Callable

from holdfast_master.inputs import Received
from holdfast_master.instructions import Refuse, Reply
from holdfast_master.settings import CoreSettings
from holdfast_wire.messages import (
    Arm,
    ArmEcho,
    BoundaryReached,
    BudgetKind,
    DrainNodeRequest,
    DrainNodeResponse,
    Fence,
    LeaveOutcome,
    ScaleRequest,
    ScaleResponse,
)
from simulated_job import SimulatedJob, job_spec

Start = Callable[..., SimulatedJob]


def redone(job: SimulatedJob) -> list[int]:
    """Steps done again, by incident."""
    return [item.steps_redone for item in job.core.goodput(job.moment()).incidents]


def test_scaling_up_by_command(training: Start) -> None:
    """The operator writes the size; the world grows at a boundary when the nodes are warm."""
    job = training(2)
    number = job.ask(ScaleRequest(replicas=4, reason="more"))
    job.run(10.0)
    answer = job.answers[number]
    assert isinstance(answer, Reply)
    assert answer.response == ScaleResponse(generation=2)
    assert job.members == [0, 1, 2, 3]
    assert redone(job) == [0]
    assert job.charges() == []
    assert job.core.status(job.moment()).rescales == 1


def test_scaling_down_by_command(training: Start) -> None:
    """The highest indices go, after the world without them trains."""
    job = training(4)
    job.ask(ScaleRequest(replicas=2))
    job.time.run(job.time.now + 10.0, lambda: job.members == [0, 1])
    assert not job.outcomes
    job.run(3.0)
    assert job.is_in("TRAINING")
    assert sorted(job.outcomes) == [(2, LeaveOutcome.RELEASED), (3, LeaveOutcome.RELEASED)]
    assert redone(job) == [0]
    job.run(15.0)
    assert job.charges() == []
    assert job.members == [0, 1]


def test_standbys_go_first(training: Start) -> None:
    """A smaller spare count touches no member."""
    job = training(2, standbys=2)
    job.add_agent(2)
    job.add_agent(3)
    job.run(2.0)
    job.change(standbys=0)
    job.run(3.0)
    assert sorted(job.outcomes) == [(2, LeaveOutcome.RELEASED), (3, LeaveOutcome.RELEASED)]
    assert job.core.status(job.moment()).round == 1


def test_a_promoted_standby_beyond_the_wanted_ranks_gives_its_place_back(training: Start) -> None:
    """Standby 3 stands in for 1; when 1 is back and no standby is wanted, 3 goes."""
    job = training(3, standbys=1)
    job.add_agent(3)
    job.run(1.0)
    job.agents[1].crash()
    job.run(6.0)
    assert job.members == [0, 3, 2]
    job.change(standbys=0)
    job.run(5.0)
    assert job.members == [0, 1, 2]
    assert (3, LeaveOutcome.RELEASED) in job.outcomes


def test_surplus_nodes_go_after_their_grace_even_if_no_world_trains(training: Start) -> None:
    """The grace is a promise to whoever wants the nodes."""
    job = training(4, min_replicas=2, scale_down_grace_seconds=5.0)
    for agent in job.agents.values():
        agent.sdk = True
    job.agents[0].crash(told=True)
    job.agents[1].crash(told=True)
    job.replaces = False
    job.run(0.5)
    job.change(replicas=2)
    for rank in (0, 1):
        job.agents[rank].crash()
    job.run(8.0)
    assert {rank for rank, _ in job.outcomes} == {2, 3}


def test_draining_shrinks_the_world_without_a_loss(training: Start) -> None:
    """The person is told what will happen; the node leaves when the others go on."""
    job = training(3)
    number = job.ask(DrainNodeRequest(node_rank=1, reason="maintenance"))
    job.run(8.0)
    answer = job.answers[number]
    assert isinstance(answer, Reply)
    assert isinstance(answer.response, DrainNodeResponse)
    assert "a world of 2" in answer.response.text
    assert job.members == [0, 2]
    assert job.outcomes == [(1, LeaveOutcome.RELEASED)]
    assert redone(job) == [0]
    job.run(12.0)
    assert job.charges() == []


def test_draining_promotes_a_standby(training: Start) -> None:
    """Same size, the vacant place."""
    job = training(3, standbys=1)
    job.add_agent(3)
    job.run(1.0)
    job.ask(DrainNodeRequest(node_rank=1))
    job.run(5.0)
    assert job.members == [0, 3, 2]
    assert redone(job) == [0]


def test_draining_below_the_minimum_asks_for_another_node(training: Start) -> None:
    """Saved at the boundary, waits, goes on with the replacement where it stopped."""
    job = training(2)
    number = job.ask(DrainNodeRequest(node_rank=0))
    answer = job.answers[number]
    assert isinstance(answer, Reply)
    assert "too few are left" in str(answer.response)
    job.run(12.0)
    assert sorted(job.members) == [0, 1]
    assert "ReplaceRequested" in job.reasons()
    assert job.training.redone == 0


def test_draining_a_standby_lets_it_go_at_once(training: Start) -> None:
    """No boundary for a node that is in no world."""
    job = training(2, standbys=1)
    job.add_agent(2)
    job.run(1.0)
    job.ask(DrainNodeRequest(node_rank=2))
    job.run(0.5)
    assert job.outcomes == [(2, LeaveOutcome.RELEASED)]
    assert job.core.status(job.moment()).round == 1


def test_draining_while_the_world_starts_costs_no_boundary(training: Start) -> None:
    """Nothing was done yet that could be lost."""
    job = training(3)
    job.agents[0].crash_worker()
    job.time.run(job.time.now + 1.0, lambda: job.is_in("STARTING"))
    job.ask(DrainNodeRequest(node_rank=1))
    job.run(2.0)
    assert job.members == [0, 2]
    assert "BoundaryArmed" not in job.reasons()


def test_draining_while_the_store_is_awaited(training: Start) -> None:
    """The world that was decided a moment ago is decided anew."""
    job = training(3)
    job.store_failures = 1.0
    job.agents[0].crash_worker()
    job.run(0.1)
    job.agents[0].crash_worker()
    job.time.run(job.time.now + 5.0, lambda: job.is_in("FORMING"))
    job.ask(DrainNodeRequest(node_rank=0))
    job.store_failures = 0.0
    job.run(5.0)
    assert job.members == [1, 2]


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


def test_growth_that_nobody_asked_for_is_a_rescale() -> None:
    """A node that comes late for the first time."""
    job = SimulatedJob(job_spec(replicas=3, join_window_seconds=1.0))
    job.add_agents(2)
    job.run_until("TRAINING")
    job.run(3.0)
    job.add_agent(2)
    job.run(15.0)
    assert job.members == [0, 1, 2]
    assert job.charges() == [BudgetKind.RESCALES]


def test_newcomers_join_together(training: Start) -> None:
    """The first one waits a little for the others that are on their way."""
    job = training(2)
    job.change(replicas=4)
    job.run(10.0)
    assert job.members == [0, 1, 2, 3]
    assert job.core.status(job.moment()).rescales == 1


def test_growth_that_does_not_pay_is_left() -> None:
    """The change would cost more than it gains over the horizon."""
    settings = CoreSettings(rescale_cost_seconds=1000.0)
    job = SimulatedJob(job_spec(replicas=3, join_window_seconds=0.5), settings=settings)
    job.add_agents(2)
    job.run_until("TRAINING")
    job.add_agent(2)
    job.run(10.0)
    assert job.members == [0, 1]


def test_the_cost_of_a_rescale_is_measured(training: Start) -> None:
    """Cheap boundaries make later growth cheaper to decide."""
    job = training(2)
    before = job.core._desk.rescale_cost
    job.ask(ScaleRequest(replicas=3))
    job.run(10.0)
    assert job.core._desk.rescale_cost < before


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


def test_scale_needs_an_operator_and_bounds(training: Start) -> None:
    """Each refusal names the value and the remedy; the present size is answered at once."""
    job = training(2)
    low, high = job.ask(ScaleRequest(replicas=1)), job.ask(ScaleRequest(replicas=9))
    same = job.ask(ScaleRequest(replicas=2))
    assert all("outside of minReplicas 2" in str(job.answers[n]) for n in (low, high))
    assert isinstance(job.answers[same], Reply)
    job.operator_leaves()
    alone = job.answers[job.ask(ScaleRequest(replicas=3))]
    assert isinstance(alone, Refuse)
    assert (alone.code.value, alone.reason) == ("FAILED_PRECONDITION", "NO_OPERATOR")


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
