"""How a deleted job goes that is to save its state first (`spec.checkpoint.onDelete`).

A finalizer holds its object until the workers have saved and left, and no longer than its deadline;
what the job owns goes with the object. Without that wish there is no finalizer, and nothing to do.
"""

from __future__ import annotations

from holdfast_operator.plan.actions import AskToStop, Hold, LetGo
from holdfast_operator.plan.pods import Role
from holdfast_operator.plan.situation import Situation, Steps, Wake


def hold(situation: Situation) -> Steps:
    """Whether the finalizer is to come or to go, of a job that is not deleted."""
    job = situation.job
    if job.held is None or job.stopping:
        return
    wanted = job.spec.delete_grace_s is not None and job.ended_at is None
    if wanted and not job.held:
        yield Hold(reason="spec.checkpoint.onDelete is true")
    elif job.held and not wanted:
        yield LetGo(reason="there is nothing to save before a deletion")


def depart(situation: Situation) -> Steps:
    """What a deleted job needs that is still held."""
    job = situation.job
    deadline = job.deleted_at + (job.spec.delete_grace_s or 0)
    if not situation.live(Role.WORKER):
        yield LetGo(reason="no worker runs any more")
    elif situation.now >= deadline:
        yield LetGo(reason="spec.checkpoint.onDeleteTimeoutSeconds is spent")
    else:
        yield AskToStop(grace_s=deadline - situation.now, reason="the job is deleted")
        yield Wake(deadline)
