"""Conditions of a job, as in `metav1.Condition`: each one's statement, with its reason.

`Complete` and `Failed` exist only once they are true. `FailureTarget` exists from the decision that
the job fails. The others always exist. `lastTransitionTime` changes only when the statement does,
so an unchanged job has an unchanged status.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from holdfast_operator.plan.history import EXTRA_ATTEMPTS
from holdfast_operator.plan.inputs import Grouped, Look, Queued
from holdfast_operator.plan.pods import Role, wanted_slots
from holdfast_operator.plan.view import JobOutcome
from holdfast_operator.status.blocked_pods import awaited, failed, obstacle
from holdfast_operator.status.world import begun, hears, kept_until, starts, world
from holdfast_wire.messages import HealthReason

_LONGEST_MESSAGE: Final = 32768
_LONGEST_REASON: Final = 1024
_STATUS: Final = {True: "True", False: "False", None: "Unknown"}
EXTRA_GIVEN_UP: Final = "ExtraRoleGivenUp"
"""Reason of Degraded: an extra role's pods ended at once too often."""
WORKERS_FAIL: Final = "WorkersFail"
"""Reason of QuorumReady: workers' pods fail while no master is there to judge them."""


class Statement(NamedTuple):
    """A condition, before it has a time."""

    holds: bool | None
    """None: nobody knows."""
    reason: str
    """CamelCase."""
    message: str = ""
    """For people."""


def rfc3339(unix: float) -> str:
    """Return a time as Kubernetes writes it: UTC, whole seconds.

    It is rounded up: a wait from this time on (`ttlSecondsAfterFinished`) is never too short.
    """
    return datetime.fromtimestamp(math.ceil(unix), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def holding(conditions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the types of the conditions that are true."""
    yield from (one["type"] for one in conditions if one["status"] == "True")


def conditions(look: Look, outcome: JobOutcome | None, *, finished: bool) -> list[dict[str, Any]]:
    """Return every condition of the job, in a fixed order; unchanged ones keep their times.

    Args:
        look: The look at the job.
        outcome: End of the job, if it is decided.
        finished: True: the job is over with this look.
    """
    stated = _statements(look, outcome, finished=finished)
    return [_condition(look, kind, statement) for kind, statement in stated]


def _condition(look: Look, kind: str, statement: Statement) -> dict[str, Any]:
    status = _STATUS[statement.holds]
    old = look.stated(kind) or None
    same = old is not None and old["status"] == status
    return {
        "type": kind,
        "status": status,
        "observedGeneration": look.job.generation,
        "lastTransitionTime": old["lastTransitionTime"] if old and same else rfc3339(look.now),
        "reason": statement.reason[:_LONGEST_REASON],
        "message": statement.message[:_LONGEST_MESSAGE],
    }


def _statements(
    look: Look, outcome: JobOutcome | None, *, finished: bool
) -> Iterator[tuple[str, Statement]]:
    yield "Suspended", _suspended(look, finished=finished)
    if look.job.queued is not None:
        yield "Admitted", _admitted(look, look.job.queued, finished=finished)
    if look.job.grouped is not None:
        yield "GangReady", _gang_ready(look.job.grouped, finished=finished)
    for kind, rule in RULES.items():
        nothing = None if kind == "Healthy" else False
        if finished:
            yield kind, Statement(nothing, "JobFinished")
        elif look.job.spec.suspend and kind in NOT_OF_SUSPENDED:
            yield kind, Statement(nothing, "Suspended")
        else:
            yield kind, rule(look)
    if outcome is not None and not outcome.succeeded:
        yield "FailureTarget", Statement(True, outcome.reason, outcome.text)
    if outcome is not None and finished:
        kind = "Complete" if outcome.succeeded else "Failed"
        yield kind, Statement(True, outcome.reason, outcome.text)


def _before(look: Look, kind: str) -> Statement | None:
    """Return a predecessor's statement, while it is believed."""
    said = look.stated(kind)
    if not said or kept_until(look) is None:
        return None
    holds = {"True": True, "False": False}.get(said["status"])
    return Statement(holds, said["reason"], said["message"])


def _as_before(look: Look, kind: str) -> Statement | None:
    """Return a predecessor's statement, while it is believed and if it was true."""
    before = _before(look, kind)
    return before if before is not None and before.holds else None


def _suspended(look: Look, *, finished: bool) -> Statement:
    if look.job.spec.suspend:
        if finished:
            return Statement(False, "JobFinished")
        if look.live(Role.WORKER):
            return Statement(False, "Suspending", "the workers are being stopped")
        queued = look.job.queued
        if queued is not None and not queued.asked.suspend:
            return Statement(True, "Queued", f"{queued.queue}: {queued.reason}")
        return Statement(True, "Suspended", "spec.suspend is true")
    before = look.job.status.get("conditions", ())
    if "Suspended" in holding(before) or any(one["reason"] == "Resumed" for one in before):
        return Statement(False, "Resumed", "spec.suspend is false again")
    return Statement(False, "NotSuspended")


def _admitted(look: Look, queued: Queued, *, finished: bool) -> Statement:
    if finished:
        return Statement(False, "JobFinished")
    if queued.asked.suspend:
        return Statement(False, "Suspended")
    if look.job.spec.suspend:
        return Statement(False, "Queued", f"{queued.queue}: {queued.reason}")
    if queued.reason:
        return Statement(True, "PartlyAdmitted", f"{queued.queue}: {queued.reason}")
    return Statement(True, "AllAdmitted")


def _gang_ready(grouped: Grouped, *, finished: bool) -> Statement:
    if finished:
        return Statement(False, "JobFinished")
    if grouped.ready:
        return Statement(True, "Grouped", grouped.text)
    return Statement(False, "NotGrouped", grouped.text)


def _master_ready(look: Look) -> Statement:
    if look.master.connected:
        return Statement(True, "Connected")
    before = _as_before(look, "MasterReady")
    if before is not None and begun(look, Role.MASTER):
        return before
    if look.job.spec.suspend:
        return Statement(False, "Suspended")
    found = obstacle(look, Role.MASTER)
    if found is not None:
        return Statement(False, found.reason, found.text)
    if world(look).active:
        return Statement(False, "MasterUnreachable", "training goes on without the master")
    if look.master.status is None:
        message = _joined("the master has not been reached yet", awaited(look, Role.MASTER))
        return Statement(False, "MasterStarting", message)
    return Statement(False, "MasterUnreachable", "the master does not answer")


def _quorum_ready(look: Look) -> Statement:
    least = look.job.spec.size.least
    active = world(look).active
    if active >= least and not starts(look):
        return Statement(True, "EnoughWorkers")
    if look.job.spec.suspend:
        return Statement(False, "Suspended")
    if active >= least:
        message = f"{active} workers start; not every rank has completed a step yet"
        return Statement(False, "WorldStarting", message)
    message = f"{active} workers train, at least {least} are needed"
    found = obstacle(look, Role.WORKER)
    if found is not None:
        return Statement(False, found.reason, f"{message}; {found.text}")
    why = failed(look)
    if why:
        return Statement(False, WORKERS_FAIL, f"{message}; {why}")
    message = _joined(message, awaited(look, Role.WORKER) or _not_joined(look))
    return Statement(False, "InsufficientWorkers", message)


def _not_joined(look: Look) -> str:
    """Describe running workers whose agents the master does not have; empty: none, or unknown."""
    said, runs = look.master.status, begun(look, Role.WORKER)
    if said is None or not hears(look) or said.ready_nodes >= runs:
        return ""
    return f"{runs} pods run, and {said.ready_nodes} of their agents are ready"


def _joined(message: str, more: str) -> str:
    return f"{message}; {more}" if more else message


def _hindered(look: Look, message: str) -> str:
    """Return the message with the obstacle of the workers' pods, if one is known."""
    found = obstacle(look, Role.WORKER)
    return message if found is None else f"{message}; {found.reason}: {found.text}"


def _scaling(look: Look) -> Statement:
    if world(look).round == 0:
        return Statement(False, "NotStarted", "there was no world yet")
    if look.master.status is None:
        before = _as_before(look, "Scaling")
        return before or _scales_on(look) or Statement(False, "Steady")
    wanted = set(wanted_slots(look.job.spec))
    going = [pod for pod in look.live(Role.WORKER) if pod.slot not in wanted]
    if going:
        return Statement(True, "ScaleDown", f"{len(going)} workers are to go")
    # Places that have never had a pod.
    coming = [
        slot for slot in wanted if slot.role is Role.WORKER and look.entry(slot).incarnation < 0
    ]
    if coming:
        return Statement(True, "ScaleUp", f"{len(coming)} workers are to come")
    return _scales_on(look) or Statement(False, "Steady")


def _scales_on(look: Look) -> Statement | None:
    """Describe the scaling under way, once the pods are as wanted, until the new world trains."""
    active, expected = world(look).active, _expected(look)
    for reason in _under_way(look):
        changes = active < expected if reason == "ScaleUp" else active > expected
        if changes or (active == expected and starts(look)):
            message = f"{active} workers train, {expected} are to"
            if not changes:
                message = f"{active} workers start; not every rank has completed a step yet"
            return Statement(True, reason, _hindered(look, message))
    return None


def _under_way(look: Look) -> Iterator[str]:
    """Yield the directions in which the size has changed since the last status, or still changes.

    An operator that was away cannot see which places are new, but knows the size that it wrote
    last.
    """
    written = look.job.status.get("size", {}).get("desired")
    desired = look.job.spec.size.desired
    if written is not None and written != desired:
        yield "ScaleUp" if written < desired else "ScaleDown"
    said = look.stated("Scaling")
    if said.get("status") == "True":
        yield str(said["reason"])


def _expected(look: Look) -> int:
    """Return the workers of a whole world: those beyond a multiple of its unit are standbys."""
    spec = look.job.spec
    return spec.replicas - spec.replicas % spec.unit


def _degraded(look: Look) -> Statement:
    known = world(look)
    given_up = _given_up(look)
    if given_up:
        return Statement(True, EXTRA_GIVEN_UP, given_up)
    if known.round == 0:
        return Statement(False, "NotStarted", "there was no world yet")
    expected = _expected(look)
    if known.active < expected:
        message = f"{known.active} of {expected} workers train"
        return Statement(True, "BelowRequested", _hindered(look, message))
    if look.avoided:
        return Statement(True, "NodeExcluded", "avoided nodes: " + ", ".join(look.avoided))
    return Statement(False, "AsRequested")


def _given_up(look: Look) -> str:
    """Name the places of extra roles that stay empty, with a remedy; empty: none."""
    given_up = [
        f"{slot.name} {slot.index}"
        for slot in (wanted_slots(look.job.spec) if look.job.spec.extra_roles else ())
        if slot.role is Role.EXTRA
        and look.entry(slot).given_up
        and not any(pod.live for pod in look.pods.get(slot, ()))
    ]
    if not given_up:
        return ""
    return (
        f"{EXTRA_ATTEMPTS} pods in a row ended at once of: {', '.join(given_up)}; see the log of "
        "the last one; no more are made until the job was suspended and resumed"
    )


def _healthy(look: Look) -> Statement:
    said = look.master.status
    if said is None:
        silent = Statement(None, "NotJudged", "the master has not been reached yet")
        return _before(look, "Healthy") or silent
    text = said.health_text
    stated = {
        HealthReason.AS_EXPECTED: Statement(True, "AsExpected", text),
        HealthReason.STRAGGLER: Statement(False, "Straggler", text),
        HealthReason.HANG: Statement(False, "Hang", text),
        HealthReason.PREFLIGHT_FAILED: Statement(False, "PreflightFailed", text),
    }
    return stated.get(said.health) or Statement(None, "NotJudged", text)


RULES: Final[Mapping[str, Callable[[Look], Statement]]] = {
    "MasterReady": _master_ready,
    "QuorumReady": _quorum_ready,
    "Scaling": _scaling,
    "Degraded": _degraded,
    "Healthy": _healthy,
}
"""Each condition but Suspended of a job that goes on."""
NOT_OF_SUSPENDED: Final = ("Scaling", "Degraded", "Healthy")
"""Conditions that say nothing else of a suspended job."""
