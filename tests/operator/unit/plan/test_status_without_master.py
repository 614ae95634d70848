"""The status while the master does not speak: what is known of it, and no more than the pods."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.plan.history import ApiRefusal
from holdfast_operator.plan.view import MasterView
from holdfast_operator.status.world import KEPT_SECONDS
from holdfast_wire.messages import ExcludeDecision, FinishDecision, JobPhase, JobStatus, PodPhase
from jobs.planned import MASTER_SLOT, World, running, worker

TRAINING = JobStatus(
    phase=JobPhase.TRAINING, epoch=1, round=3, world_size=8, active_nodes=4, ready_nodes=4, step=7
)


def _training(**fields: Any) -> World:
    """A job of four workers whose master says that all train."""
    world = running(replicas=4, minReplicas=2, maxReplicas=8, **fields)
    world.hear(TRAINING)
    world.look()
    return world


def _restart(world: World) -> None:
    """Another operator takes over, and knows nothing but the status."""
    world.master, world.history = MasterView(), {}
    world.first_seen_at = world.now


def _lose(world: World, *ranks: int) -> None:
    for rank in ranks:
        del world.pods[f"t-worker-{rank}-0"]


def test_a_takeover_of_the_operator_changes_no_word_of_a_running_job() -> None:
    """Until the master has spoken the status stays as the predecessor left it."""
    world = _training()
    world.hear(ExcludeDecision(node="bad"))
    world.look()
    before = world.status
    world.now += 5
    _restart(world)
    made = world.look()
    assert world.status == before
    assert made.requeue_after == KEPT_SECONDS
    world.now += 1
    world.hear(TRAINING)
    world.hear(ExcludeDecision(node="bad"))
    world.look()
    assert world.status == before


@pytest.mark.parametrize("phase", [JobPhase.SAVING, JobPhase.FORMING])
def test_a_takeover_keeps_the_phase_that_the_master_said_last(phase: JobPhase) -> None:
    """A job that was between two worlds is not called a running one."""
    world = _training()
    world.hear(JobStatus(phase=phase, round=3, world_size=8, active_nodes=4, ready_nodes=4))
    world.look()
    before = world.status
    _restart(world)
    world.look()
    assert world.status == before


def test_a_takeover_keeps_that_a_job_scales() -> None:
    """A new operator keeps the status of a scaling. It cannot see the new places by itself."""
    world = _training()
    world.scale(6)
    world.hear(TRAINING)
    world.look()
    assert world.stated("Scaling") == ("True", "ScaleUp")
    before = world.status
    _restart(world)
    world.look()
    assert world.status == before


def test_a_master_that_stays_silent_after_a_takeover_is_told() -> None:
    """After ten seconds the live pods are what is known; they train on."""
    world = _training()
    _restart(world)
    world.now += KEPT_SECONDS
    assert world.look().requeue_after is None
    assert world.stated("MasterReady") == ("False", "MasterUnreachable")
    assert world.stated("QuorumReady") == ("True", "EnoughWorkers")
    assert (world.status["phase"], world.status["world"]["activeReplicas"]) == ("Running", 4)


def test_after_a_takeover_too_few_live_pods_are_no_quorum() -> None:
    """A world that has lost its members while nobody looked is not shown as whole."""
    world = _training()
    _restart(world)
    world.now += KEPT_SECONDS
    _lose(world, 0, 1, 2)
    world.look()
    assert world.status["phase"] == "Restarting"
    assert world.stated("QuorumReady") == ("False", "InsufficientWorkers")
    assert world.status["world"]["activeReplicas"] == 1


def test_a_takeover_believes_nothing_that_the_pods_deny() -> None:
    """Without a master pod no master is ready, without workers nothing runs."""
    world = _training()
    _restart(world)
    world.pods.clear()
    world.look()
    assert world.status["phase"] == "Restarting"
    assert world.stated("MasterReady") == ("False", "MasterStarting")
    assert world.stated("QuorumReady") == ("False", "InsufficientWorkers")
    assert world.status["world"]["activeReplicas"] == 0


def test_a_job_that_never_trained_is_pending_after_a_takeover() -> None:
    """Nothing of it can be kept."""
    world = World({"replicas": 4})
    world.settle()
    _restart(world)
    world.look()
    assert world.status["phase"] == "Pending"
    assert world.stated("MasterReady") == ("False", "MasterStarting")


def test_a_takeover_of_a_suspended_job_keeps_it_suspended() -> None:
    """Its master was connected, and is again in a moment."""
    world = _training()
    world.suspend(True)
    world.now += 120
    world.settle()
    before = world.status
    assert before["phase"] == "Suspended"
    _restart(world)
    world.look()
    assert {**world.status, "world": None} == {**before, "world": None}


def test_when_everything_is_gone_the_masters_last_word_does_not_count() -> None:
    """Nothing can be made, so nobody says so but the pods that are not there."""
    world = _training()
    world.master = world.master.disconnected()
    world.pods.clear()
    for slot in (MASTER_SLOT, *map(worker, range(4))):
        world.refused[slot] = ApiRefusal(text="exceeded quota: q", tries=1, not_before=0.0)
    world.look()
    assert world.status["phase"] == "Restarting"
    assert world.stated("QuorumReady") == ("False", "QuotaExceeded")
    assert world.stated("MasterReady") == ("False", "QuotaExceeded")
    assert world.stated("Degraded") == ("True", "BelowRequested")
    found = world.status["world"]
    assert (found["size"], found["activeReplicas"], found["round"]) == (0, 0, 3)
    assert (world.status["replicas"], world.status["readyReplicas"]) == (0, 0)


def test_pods_that_wait_for_a_node_train_in_no_world() -> None:
    """Those that were made anew count as pods, not as members."""
    world = _training()
    world.master = world.master.disconnected()
    for rank in range(4):
        world.change(f"t-worker-{rank}-0", phase=PodPhase.PENDING, ready=False)
    world.look()
    assert world.status["phase"] == "Restarting"
    assert (world.status["replicas"], world.status["world"]["activeReplicas"]) == (4, 0)


def test_without_its_master_a_world_is_no_larger_than_the_pods() -> None:
    """One worker is gone: three train on at most, which is no change of the wanted size."""
    world = _training()
    world.master = world.master.disconnected()
    _lose(world, 3)
    world.look()
    assert (world.status["phase"], world.status["world"]["activeReplicas"]) == ("Running", 3)
    assert world.stated("QuorumReady") == ("True", "EnoughWorkers")
    assert world.stated("MasterReady") == ("False", "MasterUnreachable")
    assert "lastScaleTime" not in world.status["world"]


def test_a_master_that_has_decided_the_end_may_go_before_the_last_pod() -> None:
    """A job that succeeds is not called restarting because its workers have ended."""
    role = {"name": "eval", "template": {"spec": {"containers": [{"name": "e"}]}}}
    world = _training(extraRoles=[role])
    world.hear(FinishDecision(succeeded=True, reason="Succeeded", text=""))
    world.master = world.master.disconnected()
    _lose(world, *range(4))
    world.look()
    assert world.status["phase"] == "Running"
