"""Takes away worker pods that are not wanted: after a scale-down, and while suspended.

The master gets the new spec first. A living worker goes only when the master has released it,
because a world runs without it and its state is saved; or when its grace is over.
"""

from __future__ import annotations

from holdfast_operator.plan.actions import DeleteReason
from holdfast_operator.plan.fill import fill
from holdfast_operator.plan.inputs import SHORTEST_GRACE_SECONDS, Situation, Steps, Wake, delete
from holdfast_operator.plan.pods import MASTER_SLOT, ObservedPod, PodSlot, Role, wanted_slots


def trim(situation: Situation) -> Steps:
    """Take away the pods of places that the spec no longer has."""
    wanted = frozenset(wanted_slots(situation.job.spec))
    for slot in sorted(situation.pods):
        if slot not in wanted:
            yield from _empty(situation, slot, DeleteReason.SURPLUS)


def suspend(situation: Situation) -> Steps:
    """Take away the pods of a suspended job: workers and extra roles first, then the master."""
    for slot in sorted(situation.pods):
        if slot.role is not Role.MASTER:
            yield from _empty(situation, slot, DeleteReason.SUSPENDED)
    if situation.live(Role.WORKER):
        yield from fill(situation, MASTER_SLOT)  # it saves the state and releases the workers
        return
    for pod in situation.pods.get(MASTER_SLOT, ()):
        grace_s = situation.grace_s(MASTER_SLOT)
        yield from delete(pod, DeleteReason.SUSPENDED, grace_s)


def _empty(situation: Situation, slot: PodSlot, reason: DeleteReason) -> Steps:
    for pod in situation.pods[slot]:
        if not pod.live:
            grace_s = situation.grace_s(slot) if pod.lingers else SHORTEST_GRACE_SECONDS
            yield from delete(pod, reason, grace_s)
        elif slot.role is not Role.WORKER or _released(situation, pod):
            yield from delete(pod, reason, situation.grace_s(slot))
        else:
            yield Wake(_grace_end(situation, slot))


def _released(situation: Situation, pod: ObservedPod) -> bool:
    """Return whether a surplus worker may go now. An older release was for an older spec."""
    entry = situation.entry(pod.slot)
    said = situation.master.released.get(pod.slot.index)
    if said is not None and said >= entry.surplus_generation:
        return True
    return situation.now >= _grace_end(situation, pod.slot)


def _grace_end(situation: Situation, slot: PodSlot) -> float:
    since = situation.entry(slot).surplus_since
    start = situation.now if since is None else since
    return start + situation.job.spec.scale_down_grace_s
