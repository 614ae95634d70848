"""How a job ends: its pods go first, then it is called over; later the clean-up.

Whether it ends is the master's word. The one exception is a master that cannot be started.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from holdfast_operator.plan.actions import DeleteJob, DeleteReason, FinishJob
from holdfast_operator.plan.history import wait_after
from holdfast_operator.plan.pods import MASTER_SLOT, Role
from holdfast_operator.plan.situation import SHORTEST_GRACE_S, Situation, Steps, Wake, delete
from holdfast_operator.plan.view import Outcome
from holdfast_operator.spec.job import CleanPods

MASTER_ATTEMPTS: Final = 6
"""Masters in a row that end at once before the job fails: with the waits, about a quarter of a
minute, which a busy port or a slow disk may need and a wrong image does not."""
MASTER_LOST: Final = "MasterLost"
"""Reason of a job whose master cannot be started."""
LEAVE_S: Final = 5
"""What agents get to leave by themselves, which the master tells them to, before their pods are
deleted: a pod that ended well then shows it."""
END_WAIT_S: Final = 60
"""Beyond the pods' grace, how long a decided end waits for pods that do not go."""


def outcome_of(situation: Situation) -> Outcome | None:
    """How the job ends, decided but perhaps not carried out; None while it goes on."""
    if situation.master.outcome is not None:
        return situation.master.outcome
    entry = situation.entry(MASTER_SLOT)
    if entry.quick < MASTER_ATTEMPTS or situation.live(Role.MASTER):
        return None
    last = situation.pods.get(MASTER_SLOT, ())
    code = f" (exit code {last[-1].exit_code})" if last and last[-1].exit_code is not None else ""
    text = f"the job master ended at once {entry.quick} times in a row{code}; see its log"
    ended_at = entry.not_before - wait_after(entry.quick)
    return Outcome(succeeded=False, reason=MASTER_LOST, text=text, decided_at=ended_at)


def end(situation: Situation, outcome: Outcome) -> Steps:
    """What a decided end needs: the pods' end, then the job's."""
    keep = situation.job.spec.cleanup.pods is CleanPods.NONE
    living = situation.live(Role.WORKER, Role.EXTRA)
    leaving = situation.now < outcome.decided_at + LEAVE_S
    for pod in [] if keep else living:
        if leaving and pod.slot.role is Role.WORKER:
            yield Wake(outcome.decided_at + LEAVE_S)
        else:
            grace_s = situation.grace_s(pod.slot)
            yield from delete(pod, DeleteReason.FINISHED, grace_s)
    longest = max((situation.grace_s(pod.slot) for pod in living), default=0)
    deadline = outcome.decided_at + longest + END_WAIT_S
    if living and situation.now < deadline:
        yield Wake(deadline)
        return
    yield FinishJob(succeeded=outcome.succeeded, reason=outcome.reason, text=outcome.text)


def after_end(situation: Situation, ended_at: str) -> Steps:
    """What is cleaned up of a job whose end stands in its status."""
    cleanup = situation.job.spec.cleanup
    for slot in sorted(situation.pods):
        for pod in situation.pods[slot]:
            running = pod.live or pod.lost
            if cleanup.pods is CleanPods.ALL or (cleanup.pods is CleanPods.RUNNING and running):
                grace_s = situation.grace_s(slot) if running else SHORTEST_GRACE_S
                yield from delete(pod, DeleteReason.FINISHED, grace_s)
    if cleanup.ttl_s is not None:
        expires = datetime.fromisoformat(ended_at).timestamp() + cleanup.ttl_s
        if situation.now < expires:
            yield Wake(expires)
        else:
            yield DeleteJob(reason=f"ttlSecondsAfterFinished ({cleanup.ttl_s} s) is spent")
