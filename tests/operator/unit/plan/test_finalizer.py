"""A deleted job that is to save its state first: who holds it, how long, and what is asked."""

from __future__ import annotations

from typing import Any, Final

import pytest

from holdfast_operator.plan.actions import Action, AskToStop, DeletePod, DeleteReason, Hold, LetGo
from holdfast_wire.messages import FinishDecision
from jobs.planned import World

SAVES: Final[dict[str, Any]] = {
    "replicas": 2,
    "checkpoint": {"path": "/x", "onDelete": True, "onDeleteTimeoutSeconds": 60},
}


def _held(**fields: Any) -> World:
    """A running job that a deletion would wait for."""
    world = World({**SAVES, **fields}, held=False)
    world.settle()
    assert world.held
    return world


def _deleted(world: World) -> tuple[Action, ...]:
    world.stopping, world.deleted_at = True, world.now
    return world.look().actions


def test_the_finalizer_is_set_before_the_first_pod_is_made() -> None:
    """A job that is deleted a moment later is held already."""
    made = World(SAVES, held=False).look()
    assert isinstance(made.actions[0], Hold)


def test_a_job_that_does_not_ask_for_it_is_never_held() -> None:
    """Without the wish there is no finalizer at all, and a deletion needs nobody."""
    world = World({"replicas": 1}, held=False)
    world.settle()
    assert world.held is False
    assert _deleted(world) == ()


def test_without_a_cluster_nothing_is_held() -> None:
    """The local runner has no object that a finalizer could hold."""
    world = World(SAVES)
    assert not any(isinstance(action, Hold) for action in world.settle().actions)


def test_a_deleted_job_asks_its_master_to_stop_and_lets_go_when_the_workers_are_gone() -> None:
    """The rest of its time goes with the question; its pods are the garbage collector's."""
    world = _held()
    assert _deleted(world) == (AskToStop(grace_s=60, reason="the job is deleted"),)
    world.now += 10
    made = world.look()
    assert made.actions == (AskToStop(grace_s=50, reason="the job is deleted"),)
    assert made.requeue_after == 50
    decision = FinishDecision(succeeded=False, reason="StoppedByOperator", text="deleted")
    world.hear(decision)
    for rank in range(2):
        world.end(f"t-worker-{rank}-0", 0)
    assert world.look().actions == (LetGo(reason="no worker runs any more"),)


def test_the_deadline_lets_go_of_a_job_whose_workers_stay() -> None:
    """A master that does not answer cannot keep a namespace from going."""
    world = _held()
    _deleted(world)
    world.now += 60
    (action,) = world.look().actions
    assert isinstance(action, LetGo)
    assert "onDeleteTimeoutSeconds" in action.reason


def test_an_operator_that_was_away_lets_go_at_once_when_the_deadline_is_over() -> None:
    """It counts from the deletion, not from when somebody noticed it."""
    world = _held()
    world.history = {}
    world.stopping, world.deleted_at = True, world.now - 61
    (action,) = world.look().actions
    assert isinstance(action, LetGo)


@pytest.mark.parametrize("wish", ["suspended", "ended", "withdrawn"])
def test_a_job_without_anything_to_save_is_let_go(wish: str) -> None:
    """Suspended: no worker runs. Ended, or the wish withdrawn: nothing is held any more."""
    world = _held()
    if wish == "suspended":
        world.suspend(wanted=True)
        world.look()
        world.now += 10_000  # longer than scaleDownGraceSeconds
        world.settle()
        assert world.held
        actions = _deleted(world)
    elif wish == "ended":
        world.hear(FinishDecision(succeeded=True, reason="AllWorkersSucceeded", text="done"))
        for rank in range(2):
            world.end(f"t-worker-{rank}-0", 0)
        world.settle()
        assert not world.held
        return
    else:
        world.job = World({"replicas": 2}).job
        actions = world.look().actions
    assert [type(action) for action in actions] == [LetGo]


def test_nothing_is_made_for_a_deleted_job() -> None:
    """A worker that fails while the others save is not made anew."""
    world = _held()
    world.end("t-worker-1-0", 1)
    assert [type(action) for action in _deleted(world)] == [AskToStop]


def test_a_queued_job_is_held_until_its_pods_are_gone() -> None:
    """Its Workloads would go at once, and other jobs use its quota beside its pods."""
    world = World({"replicas": 2}, held=False, queue="team")
    world.settle()
    assert world.held
    ending = _deleted(world)
    assert {(one.slot.name, one.reason) for one in ending if isinstance(one, DeletePod)} == {
        ("master", DeleteReason.DELETED),
        ("worker", DeleteReason.DELETED),
    }
    world.do(world.look())
    assert world.look().actions == ()
    world.finish_deletions()
    assert world.look().actions == (LetGo(reason="no worker runs any more"),)


def test_a_queued_job_that_saves_first_does_so_before_its_pods_go() -> None:
    """The wish of checkpoint.onDelete comes first, with its deadline."""
    world = World(SAVES, held=False, queue="team")
    world.settle()
    assert _deleted(world) == (AskToStop(grace_s=60, reason="the job is deleted"),)
    world.now += 60
    assert all(isinstance(one, DeletePod) for one in world.look().actions)
