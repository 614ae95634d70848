"""Deletion of a job that saves its state first (`spec.checkpoint.onDelete`).

A finalizer holds the object until the workers have saved and left, at most until its deadline. The
job's other objects go with it. Without `onDelete` there is no finalizer.
"""

from __future__ import annotations

from holdfast_operator.plan.actions import AskToStop, Hold, LetGo
from holdfast_operator.plan.inputs import Situation, Steps, Wake
from holdfast_operator.plan.pods import Role


def hold(situation: Situation) -> Steps:
    """Yield the action that sets or removes the finalizer of a job that is not deleted."""
    job = situation.job
    if job.held is None or job.stopping:
        return
    wanted = job.spec.delete_grace_s is not None and job.ended_at is None
    if wanted and not job.held:
        yield Hold(reason="spec.checkpoint.onDelete is true")
    elif job.held and not wanted:
        yield LetGo(reason="there is nothing to save before a deletion")


def depart(situation: Situation) -> Steps:
    """Yield the actions for a deleted job that its finalizer still holds."""
    job = situation.job
    deadline = job.deleted_at + (job.spec.delete_grace_s or 0)
    if not situation.live(Role.WORKER):
        yield LetGo(reason="no worker runs any more")
    elif situation.now >= deadline:
        yield LetGo(reason="spec.checkpoint.onDeleteTimeoutSeconds is spent")
    else:
        yield AskToStop(grace_s=deadline - situation.now, reason="the job is deleted")
        yield Wake(deadline)
