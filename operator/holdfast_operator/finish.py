"""End of a job: its pods go first, then its condition is set; clean-up comes later. Pure.

The master decides on the end. The exceptions are a master that cannot be started, and a deadline
that passes while no master is reachable.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from holdfast_operator.deadline import exceeded
from holdfast_operator.plan.actions import DeleteJob, DeleteReason, FinishJob
from holdfast_operator.plan.history import wait_after
from holdfast_operator.plan.inputs import SHORTEST_GRACE_SECONDS, Situation, Steps, Wake, delete
from holdfast_operator.plan.pods import MASTER_SLOT, Role
from holdfast_operator.plan.view import JobOutcome
from holdfast_operator.spec.job import CleanPods

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


def outcome_of(situation: Situation) -> JobOutcome | None:
    """Return the decided outcome, perhaps not carried out yet; None while the job goes on."""
    if situation.master.outcome is not None:
        return situation.master.outcome
    entry = situation.entry(MASTER_SLOT)
    if entry.quick < MASTER_ATTEMPTS or situation.live(Role.MASTER):
        return exceeded(situation)
    last = situation.pods.get(MASTER_SLOT, ())
    code = f" (exit code {last[-1].exit_code})" if last and last[-1].exit_code is not None else ""
    text = f"the job master ended at once {entry.quick} times in a row{code}; see its log"
    ended_at = entry.not_before - wait_after(entry.quick)
    return JobOutcome(succeeded=False, reason=MASTER_LOST, text=text, decided_at=ended_at)


def end(situation: Situation, outcome: JobOutcome) -> Steps:
    """Carry out a decided end: end the pods, then the job."""
    # Agents that no master has sent a Leave would run on for ever.
    told = situation.master.outcome is not None
    keep = told and situation.job.spec.cleanup.pods is CleanPods.NONE
    living = situation.live(Role.WORKER, Role.EXTRA)
    if not keep:  # otherwise the other containers would run on after the training
        living += situation.lingering(Role.WORKER, Role.EXTRA)
    leaving = situation.now < outcome.decided_at + LEAVE_SECONDS
    for pod in [] if keep else living:
        if leaving and pod.slot.role is Role.WORKER:
            yield Wake(outcome.decided_at + LEAVE_SECONDS)
        else:
            grace_s = situation.grace_s(pod.slot)
            yield from delete(pod, DeleteReason.FINISHED, grace_s)
    longest = max((situation.grace_s(pod.slot) for pod in living), default=0)
    deadline = outcome.decided_at + longest + END_WAIT_SECONDS
    if living and situation.now < deadline:
        yield Wake(deadline)
        return
    yield FinishJob(succeeded=outcome.succeeded, reason=outcome.reason, text=outcome.text)


def after_end(situation: Situation, ended_at: str) -> Steps:
    """Clean up after a job whose end stands in its status."""
    cleanup = situation.job.spec.cleanup
    for slot in sorted(situation.pods):
        for pod in situation.pods[slot]:
            running = pod.occupies
            if cleanup.pods is CleanPods.ALL or (cleanup.pods is CleanPods.RUNNING and running):
                grace_s = situation.grace_s(slot) if running else SHORTEST_GRACE_SECONDS
                yield from delete(pod, DeleteReason.FINISHED, grace_s)
    if cleanup.ttl_s is not None:
        expires = datetime.fromisoformat(ended_at).timestamp() + cleanup.ttl_s
        if situation.now < expires:
            yield Wake(expires)
        else:
            yield DeleteJob(reason=f"ttlSecondsAfterFinished ({cleanup.ttl_s} s) is spent")
