"""The status of what begins: a first world, one of another size, a size that nobody saw come."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast_operator.plan.view import MasterView
from holdfast_operator.status.world import KEPT_SECONDS
from holdfast_wire.messages import JobPhase, JobStatus
from jobs.planned import World, running

TRAINING = JobStatus(
    phase=JobPhase.TRAINING, epoch=1, round=3, world_size=4, active_nodes=4, ready_nodes=4, step=7
)


def _said(world: World, **fields: Any) -> None:
    world.hear(dataclasses.replace(TRAINING, **fields))
    world.look()


def _take_surplus(world: World, size: int) -> None:
    world.pods = {name: pod for name, pod in world.pods.items() if pod.slot.index < size}


def test_a_job_that_has_had_no_world_says_so() -> None:
    """It is neither at the size that is asked for nor below it."""
    world = running(replicas=4)
    _said(world, round=0, active_nodes=0, phase=JobPhase.WAITING)
    assert world.stated("Scaling") == ("False", "NotStarted")
    assert world.stated("Degraded") == ("False", "NotStarted")


def test_a_job_that_begins_has_no_more_ready_workers_than_later() -> None:
    """Containers that run are no agents: 2, 0, 2 would look like a loss."""
    world = running(replicas=2)
    assert world.status["readyReplicas"] == 0
    seen = []
    for ready in (0, 1, 2):
        _said(world, phase=JobPhase.WAITING, active_nodes=0, ready_nodes=ready)
        seen.append(world.status["readyReplicas"])
    assert seen == [0, 1, 2]


def test_while_its_master_is_away_a_job_has_no_more_ready_workers_than_before() -> None:
    """A pod that was made anew meanwhile has an agent of which nobody has heard."""
    world = running(replicas=4)
    _said(world, ready_nodes=3)
    world.master = world.master.disconnected(world.now)
    world.look()
    assert world.status["readyReplicas"] == 3
    for rank in (0, 1):
        world.change(f"t-worker-{rank}-0", ready=False)
    world.look()
    assert world.status["readyReplicas"] == 2
    for rank in (0, 1):
        world.change(f"t-worker-{rank}-0", ready=True)
    world.look()
    assert world.status["readyReplicas"] == 2


def test_a_suspended_job_has_no_size() -> None:
    """Whoever reads a condition that is false shall not think that all is well."""
    world = running(replicas=4)
    _said(world)
    world.suspend(True)
    world.now += 120
    world.settle()
    _said(world, phase=JobPhase.SUSPENDED, active_nodes=0)
    for kind in ("QuorumReady", "Scaling", "Degraded"):
        assert world.stated(kind) == ("False", "Suspended")


@pytest.mark.parametrize("phase", [JobPhase.FORMING, JobPhase.STARTING])
def test_a_world_that_starts_is_no_quorum(phase: JobPhase) -> None:
    """A script that breaks before its first step, again and again, trains at no time."""
    world = running(replicas=4)
    _said(world, phase=phase, step=0)
    assert world.stated("QuorumReady") == ("False", "WorldStarting")
    world.master, world.history = MasterView(), {}
    world.first_seen_at = world.now
    world.look()
    assert world.stated("QuorumReady") == ("False", "WorldStarting"), "the next operator's"
    _said(world)
    assert world.stated("QuorumReady") == ("True", "EnoughWorkers")


def test_a_scaling_ends_when_its_world_trains() -> None:
    """The condition Scaling ends once the new world trains, in both directions."""
    world = running(replicas=4, minReplicas=1)
    _said(world)
    for size, reason in ((6, "ScaleUp"), (3, "ScaleDown")):
        world.scale(size)
        world.settle()
        _take_surplus(world, size)
        _said(world, active_nodes=size, phase=JobPhase.STARTING)
        assert world.stated("Scaling") == ("True", reason)
        _said(world, active_nodes=size)
        assert world.stated("Scaling") == ("False", "Steady")


def test_a_size_that_changed_while_no_operator_was_there_is_a_scaling() -> None:
    """The next one cannot see which places are new; what its predecessor wrote says it."""
    for size, reason in ((6, "ScaleUp"), (3, "ScaleDown")):
        world = running(replicas=4, minReplicas=1)
        _said(world)
        world.scale(size)
        world.master, world.history = MasterView(), {}
        world.first_seen_at = world.now
        world.look()
        assert world.stated("Scaling") == ("True", reason)
        world.now += 2 * KEPT_SECONDS
        world.look()
        assert world.stated("Scaling") == ("True", reason)
        world.settle()
        _said(world)
        assert world.stated("Scaling") == ("True", reason)
        _take_surplus(world, size)
        _said(world, active_nodes=size)
        assert world.stated("Scaling") == ("False", "Steady")
