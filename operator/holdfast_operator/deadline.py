"""Deadline of a job (`spec.activeDeadlineSeconds`) while no master is reachable. Pure.

Belongs here: the time at which the operator ends the job. Does not belong here: the deadline of a
job with a connected master, which the master alone counts; the end of the pods (`finish`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from holdfast_operator.plan.inputs import Situation
from holdfast_operator.plan.pods import Role
from holdfast_operator.plan.view import JobOutcome
from holdfast_operator.status.blocked_pods import obstacle
from holdfast_operator.status.world import begun
from holdfast_wire.reasons import EndReason

STARTS_SECONDS: Final = 30.0
"""Seconds beyond the deadline for a master that has begun and was never reached: it may be about to
connect, and then sees the deadline itself."""
LOST_SECONDS: Final = 300.0
"""Seconds beyond the deadline for a master that was reached before. It counts only the time in
which one lives, so its clock may be far behind, and its successor may need minutes on another
node."""


def deadline_at(situation: Situation) -> float | None:
    """Return the time at which the operator ends the job itself; None: never.

    Unix time, s. The time counts from the first look at the job, or from its resumption: since then
    the condition Suspended is false. A connected master counts by itself.
    """
    limit = situation.job.spec.active_deadline_s
    if limit is None or situation.job.spec.suspend or situation.master.connected:
        return None
    since = _since(situation, "Suspended")
    began = situation.now if since is None else since
    at = began + limit
    lost = _since(situation, "MasterReady")
    if lost is None and since is not None:
        lost = situation.now  # it was there at the last look
    if lost is not None and lost > began:
        return max(at, lost + LOST_SECONDS)
    if begun(situation, Role.MASTER):
        return max(at, situation.job.first_seen_at) + STARTS_SECONDS
    return at


def exceeded(situation: Situation) -> JobOutcome | None:
    """Return the end of a job whose time is over, once that is decided; the decision is final."""
    said = _stated(situation, "FailureTarget")
    if said.get("reason") == EndReason.DEADLINE_EXCEEDED and said["status"] == "True":
        when = _unix(said["lastTransitionTime"])
        return JobOutcome(
            succeeded=False, reason=said["reason"], text=said["message"], decided_at=when
        )
    at = deadline_at(situation)
    if at is None or situation.now < at:
        return None
    found = obstacle(situation, Role.MASTER)
    why = "it is not reached" if found is None else f"{found.reason}: {found.text}"
    limit = situation.job.spec.active_deadline_s
    text = (
        f"the job ran longer than activeDeadlineSeconds {limit}, and no master was there to end "
        f"it; {why}"
    )
    reason = EndReason.DEADLINE_EXCEEDED
    return JobOutcome(succeeded=False, reason=reason, text=text, decided_at=situation.now)


def _since(situation: Situation, kind: str) -> float | None:
    """Return the time since which a condition is false; None: it is not, or was never stated."""
    said = _stated(situation, kind)
    return _unix(said["lastTransitionTime"]) if said.get("status") == "False" else None


def _stated(situation: Situation, kind: str) -> Mapping[str, Any]:
    conditions = situation.job.status.get("conditions", ())
    return next((one for one in conditions if one["type"] == kind), {})


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
