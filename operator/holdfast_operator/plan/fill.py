"""Keeps every wanted place filled with exactly one living pod, and empties those not wanted.

A missing pod is made. A failed or vanished one gets a successor. One that the master wants replaced
is deleted first. A place whose pods fail at once again and again waits longer and longer.

After a scale-down, and for a suspension, the master gets the new spec first. A living worker goes
only when the master has released it, because a world runs without it and its state is saved; or
when its grace is over.
"""

from __future__ import annotations

import math

from holdfast_operator.plan.actions import CreatePod, DeletePod, DeleteReason
from holdfast_operator.plan.history import LONGEST_WAIT_SECONDS, SETTLED_SECONDS, SlotHistory
from holdfast_operator.plan.inputs import (
    SHORTEST_GRACE_SECONDS,
    Look,
    Steps,
    Wake,
    avoided_by,
    delete,
)
from holdfast_operator.plan.memory_raise import next_limit
from holdfast_operator.plan.pods import (
    MASTER_SLOT,
    OVERDUE_SECONDS,
    UNSCHEDULABLE,
    ObservedPod,
    PodSlot,
    Role,
    template_of,
    wanted_slots,
)
from holdfast_operator.spec.job import RestartPolicy
from holdfast_wire.messages import PodPhase, ReplaceDecision


def fill(look: Look, slot: PodSlot) -> Steps:
    """Yield the actions that one wanted place needs now."""
    pods = look.pods.get(slot, ())
    if len(pods) > 1 or not all(pod.live for pod in pods):  # a single living one is in order
        yield from _tidy(pods, look.grace_s(slot))
        yield from _forget(look, pods)
    live = [pod for pod in pods if pod.live]
    if live:
        yield from _replace(look, live[-1])
        if live[-1].gone_by is not None:
            yield Wake(live[-1].gone_by + OVERDUE_SECONDS)
        return
    entry = look.entry(slot)
    reason = _why_create(look, slot, entry)
    if reason is None or look.job.stopping:
        return
    refusal = look.job.refused.get(slot)
    not_before = max(entry.not_before, refusal.not_before if refusal else 0.0)
    # A later end comes from a node's wrong clock, or this clock was set back.
    if look.now < not_before <= look.now + LONGEST_WAIT_SECONDS:
        yield Wake(not_before)
        return
    yield CreatePod(
        slot=slot,
        incarnation=entry.incarnation + 1,
        name=slot.pod_name(look.job.name, entry.incarnation + 1),
        avoid_nodes=look.avoids(slot),
        shun_nodes=_shun(look, pods),
        memory_limit=next_limit(look, slot),
        reason=reason,
    )


def _shun(look: Look, pods: tuple[ObservedPod, ...]) -> tuple[str, ...]:
    """Return the nodes whose pod of this place does not end, though the cluster finds them well."""
    lost = (pod.node for pod in pods if pod.lost and pod.node not in {"", *look.gone})
    return tuple(dict.fromkeys(lost))


def _tidy(pods: tuple[ObservedPod, ...], grace_s: int) -> Steps:
    """Delete superfluous pods of a place: older living pods, lost ones, all but the last dead.

    A dead pod with running side containers holds devices that its successor may wait for. It gets
    the `grace_s` of its template.
    """
    for pod in [pod for pod in pods if pod.live][:-1]:
        yield from delete(pod, DeleteReason.DUPLICATE, SHORTEST_GRACE_SECONDS)
    for pod in pods:
        if pod.lost:
            yield from delete(pod, DeleteReason.LOST, SHORTEST_GRACE_SECONDS)
    dead = [pod for pod in pods if not pod.live and not pod.lost]
    for pod in dead:
        if pod.lingers and pod is not pods[-1]:
            yield from delete(pod, DeleteReason.SUPERSEDED, grace_s)
        elif pod is not dead[-1]:
            yield from delete(pod, DeleteReason.SUPERSEDED, SHORTEST_GRACE_SECONDS)


def _forget(look: Look, pods: tuple[ObservedPod, ...]) -> Steps:
    """Remove from its Service a master with a successor, whose node does not answer.

    Its pod would stay there for minutes, as if ready, and every second attempt to connect would
    lead to it and fail. If it still runs, its epoch is outdated; no other pod is forgotten.
    """
    newest = max((pod.incarnation for pod in pods if pod.live), default=-1)
    for pod in pods:
        silent = pod.lost or (pod.live and pod.node in look.job.unreachable)
        followed = pod.slot.role is Role.MASTER and pod.incarnation < newest
        if followed and silent and pod.deleting:
            yield DeletePod(
                slot=pod.slot, name=pod.name, uid=pod.uid, grace_s=0, reason=DeleteReason.LOST
            )


def _decision(look: Look, slot: PodSlot, uid: str) -> ReplaceDecision | None:
    """Return the master's decision to replace this very pod; a newer pod has satisfied it."""
    if slot.role is not Role.WORKER:
        return None
    decision = look.master.replace.get(slot.index)
    return decision if decision is not None and decision.pod_uid == uid else None


def _replace(look: Look, pod: ObservedPod) -> Steps:
    # The master asks when no world needs the pod, so there is nothing to wait for.
    wanted = _decision(look, pod.slot, pod.uid) is not None
    if wanted or _misplaced(look, pod):
        yield from delete(pod, DeleteReason.REPLACED, SHORTEST_GRACE_SECONDS)
    else:
        yield from _let_in(look, pod)


def _misplaced(look: Look, pod: ObservedPod) -> bool:
    """Return True if it was made before its node was excluded, and nothing of it runs yet.

    Planner and master learn of a pod's end at once: the next pod may be made before the master has
    excluded the node. A pod that runs is the master's to move.
    """
    idle = pod.slot.role is Role.WORKER and pod.phase is PodPhase.PENDING
    return idle and pod.node in look.avoided and pod.node not in pod.avoids


def _let_in(look: Look, pod: ObservedPod) -> Steps:
    """Make a pod anew that finds no node, and avoids one that its successor could have.

    A pod cannot be changed, and an exclusion ends while it waits.
    """
    if pod.waiting != UNSCHEDULABLE or pod.node or not pod.avoids:
        return
    template = template_of(look.job.spec, pod.slot)
    kept = {*look.avoids(pod.slot), *avoided_by(template.get("spec") or {})}
    if kept.issuperset(pod.avoids):
        ends = [end for node in pod.avoids if (end := look.gone.get(node, math.inf)) < math.inf]
        yield from (Wake(end) for end in ends)
        return
    # Not at once: what something else than the operator has it avoid, its successor avoids, too.
    settled_at = pod.created_at + SETTLED_SECONDS
    if look.now < settled_at:
        yield Wake(settled_at)
    else:
        yield from delete(pod, DeleteReason.REPLACED, SHORTEST_GRACE_SECONDS)


def _why_create(look: Look, slot: PodSlot, entry: SlotHistory) -> str | None:
    """Return why a place without a living pod gets one, for people; None: it gets none."""
    if entry.incarnation < 0:
        return None if entry.done else "the place is empty"
    last = next(
        (pod for pod in look.pods.get(slot, ()) if pod.incarnation == entry.incarnation), None
    )
    name = slot.pod_name(look.job.name, entry.incarnation)
    decision = _decision(look, slot, entry.uid)
    if decision is not None:
        return f"the master wants {name} made anew: {decision.reason}"
    if slot.role is Role.EXTRA and not _restarts(look, slot, entry):
        return None
    if slot.role is Role.WORKER and entry.done:
        return None
    return f"{name} {how_ended(last)}"


def _restarts(look: Look, slot: PodSlot, entry: SlotHistory) -> bool:
    """Return True if an extra role's pod gets a successor; one that was taken away always does."""
    roles = look.job.spec.extra_roles
    policy = next(role.restart_policy for role in roles if role.name == slot.name)
    if entry.removed:
        return True
    if entry.given_up:
        return False
    if policy is RestartPolicy.ALWAYS:
        return True
    return policy is RestartPolicy.ON_FAILURE and not entry.succeeded


def how_ended(pod: ObservedPod | None) -> str:
    """Say how a place's last pod ended; None: it does not exist any more."""
    if pod is None:
        return "is gone"
    if pod.lost:
        return f"is on {pod.node or 'a node'}, which does not answer"
    if pod.deleting:
        return "was taken away"
    code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
    return f"ended{code}" + (f" ({pod.reason})" if pod.reason else "")


def trim(look: Look) -> Steps:
    """Take away the pods of places that the spec no longer has."""
    wanted = frozenset(wanted_slots(look.job.spec))
    for slot in sorted(look.pods):
        if slot not in wanted:
            yield from _empty(look, slot, DeleteReason.SURPLUS)


def suspend(look: Look) -> Steps:
    """Take away the pods of a suspended job: workers and extra roles first, then the master."""
    for slot in sorted(look.pods):
        if slot.role is not Role.MASTER:
            yield from _empty(look, slot, DeleteReason.SUSPENDED)
    if look.live(Role.WORKER):
        yield from fill(look, MASTER_SLOT)  # it saves the state and releases the workers
        return
    for pod in look.pods.get(MASTER_SLOT, ()):
        grace_s = look.grace_s(MASTER_SLOT)
        yield from delete(pod, DeleteReason.SUSPENDED, grace_s)


def _empty(look: Look, slot: PodSlot, reason: DeleteReason) -> Steps:
    for pod in look.pods[slot]:
        if not pod.live:
            grace_s = look.grace_s(slot) if pod.lingers else SHORTEST_GRACE_SECONDS
            yield from delete(pod, reason, grace_s)
        elif slot.role is not Role.WORKER or _released(look, pod):
            yield from delete(pod, reason, look.grace_s(slot))
        else:
            yield Wake(_grace_end(look, slot))


def _released(look: Look, pod: ObservedPod) -> bool:
    """Return True if a surplus worker may go now. An older release was for an older spec."""
    entry = look.entry(pod.slot)
    said = look.master.released.get(pod.slot.index)
    if said is not None and said >= entry.surplus_version:
        return True
    return look.now >= _grace_end(look, pod.slot)


def _grace_end(look: Look, slot: PodSlot) -> float:
    since = look.entry(slot).surplus_since
    start = look.now if since is None else since
    return start + look.job.spec.scale_down_grace_s
