"""Takes away worker pods that are not wanted: after a scale-down, and while suspended.

The master is told of the new spec first. A living worker goes only once the master has released
it, because a world runs without it and its state is saved, or once its grace is spent.
"""

from __future__ import annotations

from holdfast_operator.plan.actions import DeleteReason
from holdfast_operator.plan.fill import fill
from holdfast_operator.plan.pods import MASTER_SLOT, ObservedPod, Role, Slot, wanted_slots
from holdfast_operator.plan.situation import SHORTEST_GRACE_S, Situation, Steps, Wake, delete


def trim(situation: Situation) -> Steps:
    """What goes of places that the spec does not have any more."""
    wanted = frozenset(wanted_slots(situation.job.spec))
    for slot in sorted(situation.pods):
        if slot not in wanted:
            yield from _empty(situation, slot, DeleteReason.SURPLUS)


def suspend(situation: Situation) -> Steps:
    """What goes of a suspended job: workers and extra roles first, then the master."""
    for slot in sorted(situation.pods):
        if slot.role is not Role.MASTER:
            yield from _empty(situation, slot, DeleteReason.SUSPENDED)
    if situation.live(Role.WORKER):
        yield from fill(situation, MASTER_SLOT)  # it saves the state and releases the workers
        return
    for pod in situation.pods.get(MASTER_SLOT, ()):
        grace_s = situation.grace_s(MASTER_SLOT)
        yield from delete(pod, DeleteReason.SUSPENDED, grace_s)


def _empty(situation: Situation, slot: Slot, reason: DeleteReason) -> Steps:
    for pod in situation.pods[slot]:
        if not pod.live:
            yield from delete(pod, reason, SHORTEST_GRACE_S)
        elif slot.role is not Role.WORKER or _released(situation, pod):
            yield from delete(pod, reason, situation.grace_s(slot))
        else:
            yield Wake(_grace_end(situation, slot))


def _released(situation: Situation, pod: ObservedPod) -> bool:
    """Whether a surplus worker may go now. An older release was about an older spec."""
    entry = situation.entry(pod.slot)
    said = situation.master.released.get(pod.slot.index)
    if said is not None and said >= entry.surplus_generation:
        return True
    return situation.now >= _grace_end(situation, pod.slot)


def _grace_end(situation: Situation, slot: Slot) -> float:
    since = situation.entry(slot).surplus_since
    start = situation.now if since is None else since
    return start + situation.job.spec.scale_down_grace_s
