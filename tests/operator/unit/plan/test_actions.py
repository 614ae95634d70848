"""In which order and how many at once a plan's actions are carried out."""

from __future__ import annotations

from holdfast_operator.plan.actions import (
    MOST_AT_ONCE,
    Action,
    CreatePod,
    DeletePod,
    DeleteReason,
    ScaleJob,
    in_steps,
)
from holdfast_operator.plan.pods import MASTER_SLOT, WORKER, PodSlot

SCALE = ScaleJob(decision_id=1, replicas=2, reason="")


def _create(slot: PodSlot) -> CreatePod:
    return CreatePod(slot=slot, incarnation=0, name=slot.pod_name("t", 0), reason="")


def _sizes(actions: list[Action]) -> list[int]:
    return [len(step) if isinstance(step, tuple) else 0 for step in in_steps(actions)]


def test_pods_are_made_slowly_first_and_then_many_at_once() -> None:
    """A quota that is used up costs one request, a thousand workers ten rounds."""
    workers: list[Action] = [_create(PodSlot(WORKER, rank)) for rank in range(200)]
    assert _sizes(workers) == [1, 2, 4, 8, 16, 32, MOST_AT_ONCE, MOST_AT_ONCE, 9]


def test_a_master_is_made_alone_and_nothing_changes_its_place() -> None:
    """Workers that came before it would only wait for it."""
    gone = DeletePod(
        slot=PodSlot(WORKER, 9),
        name="t-worker-9-0",
        uid="u",
        grace_s=1,
        reason=DeleteReason.SURPLUS,
    )
    master, *workers = (
        _create(slot) for slot in (MASTER_SLOT, PodSlot(WORKER, 0), PodSlot(WORKER, 1))
    )
    steps = list(in_steps([gone, master, *workers, SCALE]))
    assert steps == [gone, (master,), (workers[0],), (workers[1],), SCALE]


def test_no_action_is_lost() -> None:
    """Whatever the number."""
    for count in range(70):
        workers: list[Action] = [_create(PodSlot(WORKER, rank)) for rank in range(count)]
        flat = [one for step in in_steps(workers) if isinstance(step, tuple) for one in step]
        assert flat == workers
    assert list(in_steps([])) == []
