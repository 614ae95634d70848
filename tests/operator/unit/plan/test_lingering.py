"""Pods whose training container has ended, while other containers of them run on."""

from __future__ import annotations

from typing import Any

from holdfast_operator.finish import LEAVE_SECONDS
from holdfast_operator.plan.actions import DeletePod, FinishJob, Plan
from holdfast_wire.messages import FinishDecision
from jobs.planned import World, creates, deletes, running

DONE = FinishDecision(decision_id=9, succeeded=True, reason="Succeeded", text="all done")
_GRACE_SECONDS = 20
_TEMPLATE = {
    "spec": {
        "containers": [{"name": "worker", "image": "i", "command": ["true"]}, {"name": "logs"}],
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
    }
}


def _lingering(exit_code: int, **fields: Any) -> World:
    world = running(replicas=2, worker={"template": _TEMPLATE}, **fields)
    world.end("t-worker-0-0", exit_code, lingers=True)
    return world


def _graces(made: Plan) -> dict[str, int]:
    return {one.name: one.grace_s for one in made.actions if isinstance(one, DeletePod)}


def test_a_failed_worker_is_followed_though_its_side_container_runs() -> None:
    """The successor comes at once; then the side container gets the grace of its template."""
    world = _lingering(42)
    made = world.look()
    assert (creates(made), deletes(made)) == (["t-worker-0-1"], {})
    for action in made.actions:
        world.carry_out(action)
    made = world.look()
    assert deletes(made) == {"t-worker-0-0": "Superseded"}
    assert _graces(made) == {"t-worker-0-0": _GRACE_SECONDS}


def test_a_worker_that_is_done_keeps_its_side_container_while_others_train() -> None:
    """It may still ship logs; the place needs no successor."""
    world = _lingering(0)
    assert world.look().actions == ()
    assert world.status["replicas"] == 1


def test_the_end_of_a_job_ends_side_containers_too() -> None:
    """Agents may leave first; then they get their grace, and are gone before the job is over."""
    world = _lingering(0)
    world.end("t-worker-1-0", 0)
    world.hear(DONE)
    made = world.look()
    assert (made.actions, made.requeue_after) == ((), LEAVE_SECONDS)
    world.now += LEAVE_SECONDS
    made = world.look()
    assert deletes(made) == {"t-worker-0-0": "JobFinished"}
    assert _graces(made) == {"t-worker-0-0": _GRACE_SECONDS}
    for action in made.actions:
        world.carry_out(action)
    assert world.look().actions == ()
    world.finish_deletions()
    assert [type(action) for action in world.look().actions] == [FinishJob]


def test_a_cleanup_that_keeps_all_pods_waits_for_no_side_container() -> None:
    """Nobody would end it."""
    world = _lingering(0, cleanup__pods="None")
    world.end("t-worker-1-0", 0)
    world.hear(DONE)
    assert [type(action) for action in world.look().actions] == [FinishJob]
    assert world.look().actions == ()


def test_a_suspended_job_ends_side_containers_with_their_grace() -> None:
    """A worker that has ended beside one is not live, and its pod still runs."""
    world = _lingering(1)
    world.suspend(True)
    made = world.look()
    assert _graces(made)["t-worker-0-0"] == _GRACE_SECONDS
