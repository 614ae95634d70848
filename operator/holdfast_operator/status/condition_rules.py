"""Rules of a job's conditions: each one's statement, with its reason.

`Complete` and `Failed` exist only once they are true. `FailureTarget` exists from the decision that
the job fails. The others always exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast_operator.plan.history import EXTRA_ATTEMPTS
from holdfast_operator.plan.inputs import Situation
from holdfast_operator.plan.pods import PodSlot, Role, wanted_slots
from holdfast_operator.plan.view import JobOutcome
from holdfast_operator.status.blocked_pods import awaited, failed, obstacle
from holdfast_operator.status.conditions import ConditionStatement, holding
from holdfast_operator.status.world import begun, hears, kept_until, starts, world
from holdfast_wire.messages import HealthReason

EXTRA_GIVEN_UP: Final = "ExtraRoleGivenUp"
"""Reason of Degraded: an extra role's pods ended at once too often."""
WORKERS_FAIL: Final = "WorkersFail"
"""Reason of QuorumReady: workers' pods fail while no master is there to judge them."""


def statements(
    situation: Situation, outcome: JobOutcome | None, *, finished: bool
) -> Iterator[ConditionStatement]:
    """Yield every condition of the job, in a fixed order.

    Args:
        situation: The look at the job.
        outcome: End of the job, if it is decided.
        finished: True: the job is over with this look.
    """
    yield _suspended(situation, finished=finished)
    yield _master_ready(situation, finished=finished)
    yield _quorum_ready(situation, finished=finished)
    yield _scaling(situation, finished=finished)
    yield _degraded(situation, finished=finished)
    yield _healthy(situation, finished=finished)
    if outcome is not None and not outcome.succeeded:
        yield ConditionStatement("FailureTarget", True, outcome.reason, outcome.text)
    if outcome is not None and finished:
        kind = "Complete" if outcome.succeeded else "Failed"
        yield ConditionStatement(kind, True, outcome.reason, outcome.text)


def _given_up(situation: Situation) -> str:
    """Name the places of extra roles that stay empty, with a remedy; empty: none."""
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


def _as_before(situation: Situation, kind: str) -> ConditionStatement | None:
    """Return a predecessor's statement, while it is believed and if it was true."""
    if kept_until(situation) is None:
        return None
    for one in situation.job.status.get("conditions", ()):
        if one["type"] == kind and one["status"] == "True":
            return ConditionStatement(kind, True, one["reason"], one["message"])
    return None


def _suspended(situation: Situation, *, finished: bool) -> ConditionStatement:
    before = situation.job.status.get("conditions", ())
    if situation.job.spec.suspend:
        if finished:
            return ConditionStatement("Suspended", False, "JobFinished")
        if situation.live(Role.WORKER):
            return ConditionStatement(
                "Suspended", False, "Suspending", "the workers are being stopped"
            )
        return ConditionStatement("Suspended", True, "Suspended", "spec.suspend is true")
    was = "Suspended" in holding(before) or any(one["reason"] == "Resumed" for one in before)
    if was:
        return ConditionStatement("Suspended", False, "Resumed", "spec.suspend is false again")
    return ConditionStatement("Suspended", False, "NotSuspended")


def _master_ready(situation: Situation, *, finished: bool) -> ConditionStatement:
    kind = "MasterReady"
    if finished:
        return ConditionStatement(kind, False, "JobFinished")
    if situation.master.connected:
        return ConditionStatement(kind, True, "Connected")
    before = _as_before(situation, kind)
    if before is not None and begun(situation, Role.MASTER):
        return before
    if situation.job.spec.suspend:
        return ConditionStatement(kind, False, "Suspended")
    found = obstacle(situation, Role.MASTER)
    if found is not None:
        return ConditionStatement(kind, False, found.reason, found.text)
    if world(situation).active:
        return ConditionStatement(
            kind, False, "MasterUnreachable", "training goes on without the master"
        )
    if situation.master.status is None:
        message = _joined("the master has not been reached yet", awaited(situation, Role.MASTER))
        return ConditionStatement(kind, False, "MasterStarting", message)
    return ConditionStatement(kind, False, "MasterUnreachable", "the master does not answer")


def _quorum_ready(situation: Situation, *, finished: bool) -> ConditionStatement:
    kind = "QuorumReady"
    least = situation.job.spec.size.least
    active = world(situation).active
    if finished:
        return ConditionStatement(kind, False, "JobFinished")
    if active >= least and not starts(situation):
        return ConditionStatement(kind, True, "EnoughWorkers")
    if situation.job.spec.suspend:
        return ConditionStatement(kind, False, "Suspended")
    if active >= least:
        message = f"{active} workers start; not every rank has completed a step yet"
        return ConditionStatement(kind, False, "WorldStarting", message)
    message = f"{active} workers train, at least {least} are needed"
    found = obstacle(situation, Role.WORKER)
    if found is not None:
        return ConditionStatement(kind, False, found.reason, f"{message}; {found.text}")
    why = failed(situation)
    if why:
        return ConditionStatement(kind, False, WORKERS_FAIL, f"{message}; {why}")
    message = _joined(message, awaited(situation, Role.WORKER) or _not_joined(situation))
    return ConditionStatement(kind, False, "InsufficientWorkers", message)


def _not_joined(situation: Situation) -> str:
    """Describe running workers whose agents the master does not have; empty: none, or unknown."""
    said, runs = situation.master.status, begun(situation, Role.WORKER)
    if said is None or not hears(situation) or said.ready_nodes >= runs:
        return ""
    return f"{runs} pods run, and {said.ready_nodes} of their agents are ready"


def _joined(message: str, more: str) -> str:
    return f"{message}; {more}" if more else message


def _scaling(situation: Situation, *, finished: bool) -> ConditionStatement:
    kind = "Scaling"
    if finished:
        return ConditionStatement(kind, False, "JobFinished")
    if situation.job.spec.suspend:
        return ConditionStatement(kind, False, "Suspended")
    if world(situation).round == 0:
        return ConditionStatement(kind, False, "NotStarted", "there was no world yet")
    if situation.master.status is None:
        before = _as_before(situation, kind)
        return before or _scales_on(situation) or ConditionStatement(kind, False, "Steady")
    wanted = set(wanted_slots(situation.job.spec))
    going = [pod for pod in situation.live(Role.WORKER) if pod.slot not in wanted]
    if going:
        return ConditionStatement(kind, True, "ScaleDown", f"{len(going)} workers are to go")
    coming = [slot for slot in sorted(wanted) if _is_coming(situation, slot)]
    if coming:
        return ConditionStatement(kind, True, "ScaleUp", f"{len(coming)} workers are to come")
    return _scales_on(situation) or ConditionStatement(kind, False, "Steady")


def _scales_on(situation: Situation) -> ConditionStatement | None:
    """Describe the scaling under way, once the pods are as wanted, until the new world trains."""
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
            return ConditionStatement("Scaling", True, reason, message)
    return None


def _under_way(situation: Situation) -> Iterator[str]:
    """Yield the directions in which the size has changed since the last status, or still changes.

    An operator that was away cannot see which places are new, but knows the size that it wrote
    last.
    """
    written = situation.job.status.get("size", {}).get("desired")
    desired = situation.job.spec.size.desired
    if written is not None and written != desired:
        yield "ScaleUp" if written < desired else "ScaleDown"
    for one in situation.job.status.get("conditions", ()):
        if one["type"] == "Scaling" and one["status"] == "True":
            yield str(one["reason"])


def _expected(situation: Situation) -> int:
    """Return the workers of a whole world: those beyond a multiple of its unit are standbys."""
    spec = situation.job.spec
    return spec.replicas - spec.replicas % spec.unit


def _is_coming(situation: Situation, slot: PodSlot) -> bool:
    """Return whether a worker's place has never had a pod."""
    return slot.role is Role.WORKER and situation.entry(slot).incarnation < 0


def _degraded(situation: Situation, *, finished: bool) -> ConditionStatement:
    kind = "Degraded"
    spec, known = situation.job.spec, world(situation)
    if finished:
        return ConditionStatement(kind, False, "JobFinished")
    if spec.suspend:
        return ConditionStatement(kind, False, "Suspended")
    given_up = _given_up(situation)
    if given_up:
        return ConditionStatement(kind, True, EXTRA_GIVEN_UP, given_up)
    if known.round == 0:
        return ConditionStatement(kind, False, "NotStarted", "there was no world yet")
    expected = _expected(situation)
    if known.active < expected:
        message = f"{known.active} of {expected} workers train"
        found = obstacle(situation, Role.WORKER)
        if found is not None:
            message = f"{message}; {found.reason}: {found.text}"
        return ConditionStatement(kind, True, "BelowRequested", message)
    if situation.avoided:
        message = "avoided nodes: " + ", ".join(situation.avoided)
        return ConditionStatement(kind, True, "NodeExcluded", message)
    return ConditionStatement(kind, False, "AsRequested")


def _healthy(situation: Situation, *, finished: bool) -> ConditionStatement:
    kind = "Healthy"
    if finished:
        return ConditionStatement(kind, None, "JobFinished")
    if situation.job.spec.suspend:
        return ConditionStatement(kind, None, "Suspended")
    said = situation.master.status
    if said is None:
        silent = ConditionStatement(kind, None, "NotJudged", "the master has not been reached yet")
        return _left(situation, kind) or silent
    text = said.health_text
    stated = {
        HealthReason.AS_EXPECTED: ConditionStatement(kind, True, "AsExpected", text),
        HealthReason.STRAGGLER: ConditionStatement(kind, False, "Straggler", text),
        HealthReason.HANG: ConditionStatement(kind, False, "Hang", text),
        HealthReason.PREFLIGHT_FAILED: ConditionStatement(kind, False, "PreflightFailed", text),
    }
    return stated.get(said.health) or ConditionStatement(kind, None, "NotJudged", text)


def _left(situation: Situation, kind: str) -> ConditionStatement | None:
    """Return a predecessor's statement, while it is believed, whatever it says."""
    if kept_until(situation) is None:
        return None
    for one in situation.job.status.get("conditions", ()):
        if one["type"] == kind:
            holds = {"True": True, "False": False}.get(one["status"])
            return ConditionStatement(kind, holds, one["reason"], one["message"])
    return None
