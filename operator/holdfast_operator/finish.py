"""End of a job: by its master, its deadline or its deletion; pods first, then the condition. Pure.

The master decides on the end. The exceptions are a master that cannot be started, and a deadline
(`spec.activeDeadlineSeconds`) that passes while no master is reachable. Clean-up comes later.
"""

from __future__ import annotations

from typing import Final

from holdfast_operator.plan.actions import (
    AskToStop,
    DeleteJob,
    DeleteReason,
    FinishJob,
    Hold,
    LetGo,
)
from holdfast_operator.plan.history import wait_after
from holdfast_operator.plan.inputs import (
    SHORTEST_GRACE_SECONDS,
    Look,
    Steps,
    Wake,
    delete,
    unix_time,
)
from holdfast_operator.plan.pods import MASTER_SLOT, Role
from holdfast_operator.plan.view import JobOutcome
from holdfast_operator.spec.job import CleanPods
from holdfast_operator.status.blocked_pods import obstacle
from holdfast_operator.status.world import begun
from holdfast_wire.reasons import EndReason

MASTER_ATTEMPTS: Final = 6
"""Masters in a row that end at once before the job fails. With the waits this takes about a quarter
of a minute: enough for a busy port or a slow disk, and no help for a wrong image."""
MASTER_LOST: Final = "MasterLost"
"""Reason of a job whose master cannot be started."""
LEAVE_SECONDS: Final = 5
"""Time for agents to leave by themselves, as the master orders, before their pods are deleted: a
pod that ended well then shows it."""
END_WAIT_SECONDS: Final = 60
"""Time, beyond the pods' grace, for which a decided end waits for pods that do not go."""
STARTS_SECONDS: Final = 30.0
"""Seconds beyond the deadline for a master that has begun and was never reached: it may be about to
connect, and then sees the deadline itself."""
LOST_SECONDS: Final = 300.0
"""Seconds beyond the deadline for a master that was reached before. It counts only the time in
which one lives, so its clock may be far behind, and its successor may need minutes on another
node."""


def outcome_of(look: Look) -> JobOutcome | None:
    """Return the decided outcome, perhaps not carried out yet; None while the job goes on."""
    if look.master.outcome is not None:
        return look.master.outcome
    entry = look.entry(MASTER_SLOT)
    if entry.quick < MASTER_ATTEMPTS or look.live(Role.MASTER):
        return exceeded(look)
    last = look.pods.get(MASTER_SLOT, ())
    code = f" (exit code {last[-1].exit_code})" if last and last[-1].exit_code is not None else ""
    text = f"the job master ended at once {entry.quick} times in a row{code}; see its log"
    ended_at = entry.not_before - wait_after(entry.quick)
    return JobOutcome(succeeded=False, reason=MASTER_LOST, text=text, decided_at=ended_at)


def end(look: Look, outcome: JobOutcome) -> Steps:
    """Carry out a decided end: end the pods, then the job."""
    # Agents that no master has sent a Leave would run on without end.
    told = look.master.outcome is not None
    keep = told and look.job.spec.cleanup.pods is CleanPods.NONE
    living = look.live(Role.WORKER, Role.EXTRA)
    if not keep:  # otherwise the other containers would run on after the training
        living += look.lingering(Role.WORKER, Role.EXTRA)
    leaving = look.now < outcome.decided_at + LEAVE_SECONDS
    for pod in [] if keep else living:
        if leaving and pod.slot.role is Role.WORKER:
            yield Wake(outcome.decided_at + LEAVE_SECONDS)
        else:
            grace_s = look.grace_s(pod.slot)
            yield from delete(pod, DeleteReason.FINISHED, grace_s)
    longest = max((look.grace_s(pod.slot) for pod in living), default=0)
    deadline = outcome.decided_at + longest + END_WAIT_SECONDS
    if living and look.now < deadline:
        yield Wake(deadline)
        return
    yield FinishJob(succeeded=outcome.succeeded, reason=outcome.reason, text=outcome.text)


def after_end(look: Look, ended_at: str) -> Steps:
    """Clean up after a job whose end stands in its status."""
    cleanup = look.job.spec.cleanup
    for slot in sorted(look.pods):
        for pod in look.pods[slot]:
            running = pod.occupies
            if cleanup.pods is CleanPods.ALL or (cleanup.pods is CleanPods.RUNNING and running):
                grace_s = look.grace_s(slot) if running else SHORTEST_GRACE_SECONDS
                yield from delete(pod, DeleteReason.FINISHED, grace_s)
    if cleanup.ttl_s is not None:
        expires = unix_time(ended_at) + cleanup.ttl_s
        if look.now < expires:
            yield Wake(expires)
        else:
            yield DeleteJob(reason=f"ttlSecondsAfterFinished ({cleanup.ttl_s} s) is spent")


def deadline_at(look: Look) -> float | None:
    """Return the time at which the operator ends the job itself; None: never.

    Unix time, s. The time counts from the first look at the job, or from its resumption: since then
    the condition Suspended is false. A connected master counts by itself.
    """
    limit = look.job.spec.active_deadline_s
    if limit is None or look.job.spec.suspend or look.master.connected:
        return None
    since = _since(look, "Suspended")
    began = look.now if since is None else since
    at = began + limit
    lost = _since(look, "MasterReady")
    if lost is None and since is not None:
        lost = look.now  # it was there at the last look
    if lost is not None and lost > began:
        return max(at, lost + LOST_SECONDS)
    if begun(look, Role.MASTER):
        return max(at, look.job.first_seen_at) + STARTS_SECONDS
    return at


def exceeded(look: Look) -> JobOutcome | None:
    """Return the end of a job whose time is over, once that is decided; the decision is final."""
    said = look.stated("FailureTarget")
    if said.get("reason") == EndReason.DEADLINE_EXCEEDED and said["status"] == "True":
        when = unix_time(said["lastTransitionTime"])
        return JobOutcome(
            succeeded=False, reason=said["reason"], text=said["message"], decided_at=when
        )
    at = deadline_at(look)
    if at is None or look.now < at:
        return None
    found = obstacle(look, Role.MASTER)
    why = "it is not reached" if found is None else f"{found.reason}: {found.text}"
    limit = look.job.spec.active_deadline_s
    text = (
        f"the job ran longer than activeDeadlineSeconds {limit}, and no master was there to end "
        f"it; {why}"
    )
    reason = EndReason.DEADLINE_EXCEEDED
    return JobOutcome(succeeded=False, reason=reason, text=text, decided_at=look.now)


def _since(look: Look, kind: str) -> float | None:
    """Return the time since which a condition is false; None: it is not, or was never stated."""
    said = look.stated(kind)
    return unix_time(said["lastTransitionTime"]) if said.get("status") == "False" else None


def hold(look: Look) -> Steps:
    """Yield the action that sets or removes the finalizer of a job that is not deleted.

    A queued job has it, too: Kubernetes would delete its Workloads, and so give its quota to other
    jobs, while its pods still end.
    """
    job = look.job
    if job.held is None or job.stopping:
        return
    saves = job.spec.delete_grace_s is not None
    wanted = (saves or job.queued is not None) and job.ended_at is None
    if wanted and not job.held:
        why = "spec.checkpoint.onDelete is true" if saves else "its pods use quota"
        yield Hold(reason=why)
    elif job.held and not wanted:
        yield LetGo(reason="a deletion has nothing to wait for")


def depart(look: Look) -> Steps:
    """Yield the actions for a deleted job that its finalizer still holds."""
    job = look.job
    deadline = job.deleted_at + (job.spec.delete_grace_s or 0)
    if look.live(Role.WORKER) and look.now < deadline:
        yield AskToStop(grace_s=deadline - look.now, reason="the job is deleted")
        yield Wake(deadline)
        return
    using = [*look.live(*Role), *look.lingering(*Role)] if job.queued is not None else []
    for pod in using:
        yield from delete(pod, DeleteReason.DELETED, look.grace_s(pod.slot))
    if using:
        return
    late = bool(look.live(Role.WORKER))
    text = "spec.checkpoint.onDeleteTimeoutSeconds is spent" if late else "no worker runs any more"
    yield LetGo(reason=text)
