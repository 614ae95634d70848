"""The status subresource: the present state, for people, `kubectl get`, HPA and the next plan.

It is made whole at every look. Facts of the past (first start, the last world of a master that is
away) come from the last status, as far as the pods allow (see `world`). Once the job is over, its
end never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast_operator.plan import completed, memory_raise
from holdfast_operator.plan.inputs import Situation
from holdfast_operator.plan.pods import WORKER, Role
from holdfast_operator.plan.view import JobOutcome
from holdfast_operator.status.condition_rules import statements
from holdfast_operator.status.conditions import holding, rfc3339, settle
from holdfast_operator.status.world import hears, kept_phase, world
from holdfast_wire import keys
from holdfast_wire.messages import BudgetKind, JobPhase, JobStatus, PodPhase

_BUDGETS: Final[Mapping[BudgetKind, str]] = {
    BudgetKind.FAILURES: "failures",
    BudgetKind.PREEMPTIONS: "preemptions",
    BudgetKind.RESCALES: "rescales",
    BudgetKind.NO_PROGRESS: "noProgressRestarts",
}
_RUNNING: Final = frozenset({JobPhase.TRAINING, JobPhase.STOPPING, JobPhase.SUCCEEDED})


def report(situation: Situation, outcome: JobOutcome | None, *, finished: bool) -> dict[str, Any]:
    """Return the whole status object of a job.

    Args:
        situation: The look at the job.
        outcome: End of the job, if it is decided.
        finished: True: the job is over with this look.
    """
    if situation.job.ended_at is not None:
        return _ended(situation)
    job, master = situation.job, situation.master
    status: dict[str, Any] = {
        "observedGeneration": job.generation,
        **_pods(situation),
        "selector": f"{keys.LABEL_JOB}={job.name},{keys.LABEL_ROLE}={WORKER}",
        "size": {
            "min": job.spec.size.least,
            "desired": job.spec.size.desired,
            "max": job.spec.size.most,
        },
    }
    if master.status is not None:
        status |= _from_master(situation, master.status)
    else:
        names = ("restarts", "budgets", "goodputPercent", "goodputAssumed", "lastCheckpoint")
        status |= {name: job.status[name] for name in names if name in job.status}
        if "world" in job.status:
            status["world"] = {**job.status["world"], **_members(situation)}
    done = completed.written(situation)
    if done:
        status[completed.FIELD] = done
    if job.master_endpoint:
        status["masterEndpoint"] = job.master_endpoint
    if situation.avoided:
        status["excludedNodes"] = list(situation.avoided)
    more_memory = memory_raise.raised(situation)
    if more_memory:
        status[memory_raise.FIELD] = more_memory
    status |= _times(situation, finished=finished)
    before = job.status.get("conditions", ())
    stated = statements(situation, outcome, finished=finished)
    status["conditions"] = settle(stated, before, job.generation, situation.now)
    status["phase"] = _phase(situation, outcome, status)
    return status


def _ended(situation: Situation) -> dict[str, Any]:
    """Return the status of a job that is over: only its pods still change."""
    return {**situation.job.status, **_pods(situation)}


def _pods(situation: Situation) -> dict[str, Any]:
    workers = situation.live(Role.WORKER)
    master = situation.master
    # Only the master knows the agents. While it is away there are no more than it had, and a pod
    # with running containers proves nothing.
    before = situation.job.status.get("readyReplicas", 0)
    if hears(situation) and master.status is not None:
        ready = min(master.status.ready_nodes, len(workers))
    elif kept_phase(situation) is not None:
        ready = min(before, len(workers))
    else:
        ready = min(before, sum(pod.ready for pod in workers))
    names = dict.fromkeys(slot.name for slot in sorted(situation.pods))
    return {
        "replicas": len(workers),
        "readyReplicas": ready,
        "roles": [_role(situation, name) for name in names],
    }


def _role(situation: Situation, name: str) -> dict[str, Any]:
    pods = [pod for slot, group in situation.pods.items() if slot.name == name for pod in group]
    live = [pod for pod in pods if pod.live]
    return {
        "name": name,
        "active": len(live),
        "ready": sum(pod.ready for pod in live),
        "succeeded": sum(pod.phase is PodPhase.SUCCEEDED for pod in pods),
        "failed": sum(pod.phase is PodPhase.FAILED for pod in pods),
        "terminating": sum(pod.deleting for pod in live),
    }


def _from_master(situation: Situation, said: JobStatus) -> dict[str, Any]:
    result: dict[str, Any] = {
        "world": _world(situation, said),
        "restarts": {
            "total": said.restarts_in_place + said.nodes_replaced,
            "inPlace": said.restarts_in_place,
            "replaced": said.nodes_replaced,
            "disrupted": said.nodes_disrupted,
            "rescaled": said.rescales,
        },
        "budgets": [
            {"name": _BUDGETS[budget.kind], "used": budget.used, "limit": budget.limit}
            for budget in said.budgets
            if budget.used > 0 and budget.kind in _BUDGETS
        ],
    }
    checkpoint = _checkpoint(situation, said)
    if checkpoint:
        result["lastCheckpoint"] = checkpoint
    if said.job_seconds > 0:
        result["goodputPercent"] = max(0, min(100, round(said.goodput * 100)))
        if said.goodput_assumed:
            result["goodputAssumed"] = True
    return result


def _checkpoint(situation: Situation, said: JobStatus) -> dict[str, Any]:
    """Return the newest checkpoint; a known one keeps its time. Empty: there is none."""
    step = max(said.stored_step, said.memory_step)
    if not step:
        return {}
    tier = "Storage" if said.stored_step == step else "Memory"
    before: dict[str, Any] = situation.job.status.get("lastCheckpoint", {})
    if (before.get("step"), before.get("tier")) == (step, tier):
        return before
    return {"step": step, "tier": tier, "time": rfc3339(situation.now)}


def _world(situation: Situation, said: JobStatus) -> dict[str, Any]:
    before = situation.job.status.get("world", {})
    result: dict[str, Any] = {
        "round": said.round,
        "epoch": said.epoch,
        **_members(situation),
        "standbys": said.standby_nodes,
        "step": 0 if said.step_guessed else said.step,
    }
    if said.step_guessed:  # apart: a column of kubectl cannot show that it is a guess
        result["guessedStep"] = said.step
    known, active = before.get("activeReplicas", 0), result["activeReplicas"]
    if situation.master.connected and known and active and active != known:
        result["lastScaleTime"] = rfc3339(situation.now)
    elif "lastScaleTime" in before:
        result["lastScaleTime"] = before["lastScaleTime"]
    return result


def _members(situation: Situation) -> dict[str, int]:
    known = world(situation)
    return {"size": known.size, "activeReplicas": known.active}


def _times(situation: Situation, *, finished: bool) -> dict[str, Any]:
    job, said = situation.job, situation.master.status
    times: dict[str, Any] = {}
    if "startTime" in job.status:
        times["startTime"] = job.status["startTime"]
    elif said is not None and said.phase is JobPhase.TRAINING:
        times["startTime"] = rfc3339(situation.now)
    if finished:
        times["completionTime"] = rfc3339(situation.now)
    return times


def _phase(situation: Situation, outcome: JobOutcome | None, status: Mapping[str, Any]) -> str:
    """Return one word for people; programs read the conditions."""
    true = set(holding(status["conditions"]))
    for condition, phase in (("Complete", "Succeeded"), ("Failed", "Failed")):
        if condition in true:
            return phase
    if situation.job.spec.suspend:
        return "Suspended"
    if "startTime" not in status:
        return "Pending"
    if outcome is None and not hears(situation) and not world(situation).active:
        return "Restarting"
    return kept_phase(situation) or _phase_of_world(situation, scaling="Scaling" in true)


def _phase_of_world(situation: Situation, *, scaling: bool) -> str:
    said = situation.master.status
    if scaling or (said is not None and said.phase is JobPhase.SAVING):
        return "Scaling"
    if said is None:
        trains = world(situation).active >= situation.job.spec.size.least
    else:
        trains = said.phase in _RUNNING
    return "Running" if trains else "Restarting"
