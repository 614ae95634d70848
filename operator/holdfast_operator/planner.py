"""The plan of one job: which pods to make and delete now, and whether the job is over.

Level-triggered: a plan follows from the present state, not from events. So it can be made again at
any time, even by a planner that was just started. The master decides about training; the plan
carries that out. The local runner and the operator share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from holdfast_operator.finish import after_end, deadline_at, depart, end, hold, outcome_of
from holdfast_operator.plan.actions import (
    Action,
    AskToStop,
    CreatePod,
    DeleteJob,
    DeletePod,
    FinishJob,
    Hold,
    LetGo,
    Plan,
    ScaleJob,
)
from holdfast_operator.plan.completed import remembered
from holdfast_operator.plan.fill import fill, suspend, trim
from holdfast_operator.plan.history import observe
from holdfast_operator.plan.inputs import Look, PlannedJob, Steps, Wake
from holdfast_operator.plan.lost import AGAIN_SECONDS, gone, judged, stranded, verdict_at
from holdfast_operator.plan.pods import (
    MASTER_SLOT,
    ObservedPod,
    by_slot,
    overdue,
    wanted_slots,
)
from holdfast_operator.plan.view import MasterView
from holdfast_operator.status.report import report
from holdfast_operator.status.world import kept_until

_ORDER: Final[Mapping[type[Action], int]] = {
    kind: at
    for at, kind in enumerate(
        (Hold, AskToStop, DeletePod, CreatePod, ScaleJob, FinishJob, DeleteJob, LetGo)
    )
}


def plan(job: PlannedJob, pods: Iterable[ObservedPod], master: MasterView, now: float) -> Plan:
    """Decide on the actions for one job.

    Making a plan twice from the same inputs gives the same plan; carrying one out and looking
    again leads to a plan without actions.

    Args:
        job: The job, with the status and the history of its last plan.
        pods: All its existing pods. A pod of an earlier look that is missing has vanished.
        master: Last messages of its master.
        now: Unix time, s.
    """
    seen = tuple(pods)
    known = tuple(judged(overdue(seen, now), job, master, now))
    known = tuple(stranded(known, job, gone(known, job, now)))
    existing = by_slot(known)
    wanted = (MASTER_SLOT,) if job.spec.suspend else wanted_slots(job.spec)
    look = Look(
        job=job,
        pods=existing,
        master=master,
        history=observe(
            remembered(job), existing, wanted, job.version, now, mastered=master.connected
        ),
        gone=gone(known, job, now),
        now=now,
    )
    actions: list[Action] = []
    wakes: list[float] = []
    for step in _steps(look):
        if isinstance(step, Wake):
            wakes.append(step.at)
        else:
            actions.append(step)
    wakes += _verdicts(seen, job, master, now)
    kept = kept_until(look)
    if kept is not None:
        wakes.append(kept)
    actions.sort(key=lambda action: _ORDER[type(action)])
    finished = any(isinstance(action, FinishJob) for action in actions)
    return Plan(
        actions=tuple(actions),
        status=report(look, outcome_of(look), finished=finished),
        history=look.history,
        requeue_after=max(0.0, min(wakes) - now) if wakes else None,
    )


def _verdicts(
    pods: Iterable[ObservedPod], job: PlannedJob, master: MasterView, now: float
) -> Iterator[float]:
    """Yield the times at which an unreachable master may have to be judged."""
    for at in (verdict_at(pod, job, master) for pod in pods):
        if at is not None and (at > now or job.cut_off):
            yield max(at, now + AGAIN_SECONDS) if job.cut_off else at


def _steps(look: Look) -> Steps:
    job = look.job
    if job.stopping and job.held:
        yield from depart(look)
        return
    yield from hold(look)
    if job.ended_at is not None:
        yield from after_end(look, job.ended_at)
        return
    outcome = outcome_of(look)
    if outcome is not None:
        yield from end(look, outcome)
        return
    deadline = deadline_at(look)
    if deadline is not None:
        yield Wake(deadline)
    scale = look.master.scale
    if scale is not None:
        yield ScaleJob(decision_id=scale.decision_id, replicas=scale.replicas, reason=scale.reason)
    if job.spec.suspend:
        yield from suspend(look)
        return
    yield from trim(look)
    for slot in wanted_slots(job.spec):
        yield from fill(look, slot)
