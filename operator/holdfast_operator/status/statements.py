"""What holds of a job now: each condition's statement, with its reason.

`Complete` and `Failed` are there only once they are true, `FailureTarget` from the moment on at
which a failure is decided; the others always are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast_operator.plan.history import EXTRA_ATTEMPTS
from holdfast_operator.plan.pods import Role, Slot, wanted_slots
from holdfast_operator.plan.situation import Situation
from holdfast_operator.plan.view import Outcome
from holdfast_operator.status.conditions import Statement, holding
from holdfast_operator.status.known import begun, kept_until, starts, world
from holdfast_operator.status.obstacles import obstacle

EXTRA_GIVEN_UP: Final = "ExtraRoleGivenUp"
"""Reason of Degraded: an extra role's pods ended at once too often."""


def statements(
    situation: Situation, outcome: Outcome | None, *, finished: bool
) -> Iterator[Statement]:
    """Every condition of the job, in a fixed order.

    Args:
        situation: The look at the job.
        outcome: How it ends, where that is decided.
        finished: Whether it is over with this look.
    """
    yield _suspended(situation)
    yield _master_ready(situation, finished=finished)
    yield _quorum_ready(situation, finished=finished)
    yield _scaling(situation, finished=finished)
    yield _degraded(situation, finished=finished)
    if outcome is not None and not outcome.succeeded:
        yield Statement("FailureTarget", True, outcome.reason, outcome.text)
    if outcome is not None and finished:
        kind = "Complete" if outcome.succeeded else "Failed"
        yield Statement(kind, True, outcome.reason, outcome.text)


def _given_up(situation: Situation) -> str:
    """Which places of extra roles stay empty, and what to do; empty: none."""
    given_up = [
        f"{slot.name} {slot.index}"
        for slot in wanted_slots(situation.job.spec)
        if slot.role is Role.EXTRA
        and situation.entry(slot).given_up
        and not any(pod.live for pod in situation.pods.get(slot, ()))
    ]
    if not given_up:
        return ""
    return (
        f"{EXTRA_ATTEMPTS} pods in a row ended at once of: {', '.join(given_up)}; see the log of "
        "the last one; no more are made until the job was suspended and resumed"
    )


def _as_before(situation: Situation, kind: str) -> Statement | None:
    """What a predecessor wrote, while it is believed and if it was true."""
    if kept_until(situation) is None:
        return None
    for one in situation.job.status.get("conditions", ()):
        if one["type"] == kind and one["status"] == "True":
            return Statement(kind, True, one["reason"], one["message"])
    return None


def _suspended(situation: Situation) -> Statement:
    before = situation.job.status.get("conditions", ())
    if situation.job.spec.suspend:
        if situation.live(Role.WORKER):
            return Statement("Suspended", False, "Suspending", "the workers are being stopped")
        return Statement("Suspended", True, "Suspended", "spec.suspend is true")
    was = "Suspended" in holding(before) or any(one["reason"] == "Resumed" for one in before)
    if was:
        return Statement("Suspended", False, "Resumed", "spec.suspend is false again")
    return Statement("Suspended", False, "NotSuspended")


def _master_ready(situation: Situation, *, finished: bool) -> Statement:
    kind = "MasterReady"
    if finished:
        return Statement(kind, False, "JobFinished")
    if situation.master.connected:
        return Statement(kind, True, "Connected")
    before = _as_before(situation, kind)
    if before is not None and begun(situation, Role.MASTER):
        return before
    if situation.job.spec.suspend:
        return Statement(kind, False, "Suspended")
    found = obstacle(situation, Role.MASTER)
    if found is not None:
        return Statement(kind, False, found.reason, found.text)
    if world(situation).active:
        return Statement(kind, False, "MasterUnreachable", "training goes on without the master")
    if situation.master.status is None:
        return Statement(kind, False, "MasterStarting", "the master has not been reached yet")
    return Statement(kind, False, "MasterUnreachable", "the master does not answer")


def _quorum_ready(situation: Situation, *, finished: bool) -> Statement:
    kind = "QuorumReady"
    least = situation.job.spec.size.least
    active = world(situation).active
    if finished:
        return Statement(kind, False, "JobFinished")
    if active >= least and not starts(situation):
        return Statement(kind, True, "EnoughWorkers")
    if situation.job.spec.suspend:
        return Statement(kind, False, "Suspended")
    if active >= least:
        message = f"{active} workers start; not every rank has completed a step yet"
        return Statement(kind, False, "WorldStarting", message)
    message = f"{active} workers train, at least {least} are needed"
    found = obstacle(situation, Role.WORKER)
    if found is not None:
        return Statement(kind, False, found.reason, f"{message}; {found.text}")
    return Statement(kind, False, "InsufficientWorkers", message)


def _scaling(situation: Situation, *, finished: bool) -> Statement:
    kind = "Scaling"
    if finished:
        return Statement(kind, False, "JobFinished")
    if situation.job.spec.suspend:
        return Statement(kind, False, "Suspended")
    if world(situation).round == 0:
        return Statement(kind, False, "NotStarted", "there was no world yet")
    if situation.master.status is None:
        before = _as_before(situation, kind)
        return before or _scales_on(situation) or Statement(kind, False, "Steady")
    wanted = set(wanted_slots(situation.job.spec))
    going = [pod for pod in situation.live(Role.WORKER) if pod.slot not in wanted]
    if going:
        return Statement(kind, True, "ScaleDown", f"{len(going)} workers are to go")
    coming = [slot for slot in sorted(wanted) if _is_coming(situation, slot)]
    if coming:
        return Statement(kind, True, "ScaleUp", f"{len(coming)} workers are to come")
    return _scales_on(situation) or Statement(kind, False, "Steady")


def _scales_on(situation: Situation) -> Statement | None:
    """Where the pods are as wanted: the scaling under way, until a world of the new size trains."""
    active, expected = world(situation).active, _expected(situation)
    for reason in _under_way(situation):
        changes = active < expected if reason == "ScaleUp" else active > expected
        if changes or (active == expected and starts(situation)):
            message = f"{active} workers train, {expected} are to"
            if not changes:
                message = f"{active} workers start; not every rank has completed a step yet"
            found = obstacle(situation, Role.WORKER)
            if found is not None:
                message = f"{message}; {found.reason}: {found.text}"
            return Statement("Scaling", True, reason, message)
    return None


def _under_way(situation: Situation) -> Iterator[str]:
    """Ways in which the size changes since the last status, or has not changed wholly yet.

    An operator that was away cannot see which places are new, but what size it wrote down last.
    """
    written = situation.job.status.get("size", {}).get("desired")
    desired = situation.job.spec.size.desired
    if written is not None and written != desired:
        yield "ScaleUp" if written < desired else "ScaleDown"
    for one in situation.job.status.get("conditions", ()):
        if one["type"] == "Scaling" and one["status"] == "True":
            yield str(one["reason"])


def _expected(situation: Situation) -> int:
    """Workers of a whole world: those beyond a multiple of nodeUnit are standbys."""
    spec = situation.job.spec
    return spec.replicas - spec.replicas % spec.node_unit


def _is_coming(situation: Situation, slot: Slot) -> bool:
    """Whether a worker's place has never had a pod."""
    return slot.role is Role.WORKER and situation.entry(slot).incarnation < 0


def _degraded(situation: Situation, *, finished: bool) -> Statement:
    kind = "Degraded"
    spec, known = situation.job.spec, world(situation)
    if finished:
        return Statement(kind, False, "JobFinished")
    if spec.suspend:
        return Statement(kind, False, "Suspended")
    given_up = _given_up(situation)
    if given_up:
        return Statement(kind, True, EXTRA_GIVEN_UP, given_up)
    if known.round == 0:
        return Statement(kind, False, "NotStarted", "there was no world yet")
    expected = _expected(situation)
    if known.active < expected:
        message = f"{known.active} of {expected} workers train"
        found = obstacle(situation, Role.WORKER)
        if found is not None:
            message = f"{message}; {found.reason}: {found.text}"
        return Statement(kind, True, "BelowRequested", message)
    if situation.avoided:
        message = "avoided nodes: " + ", ".join(situation.avoided)
        return Statement(kind, True, "NodeExcluded", message)
    return Statement(kind, False, "AsRequested")
