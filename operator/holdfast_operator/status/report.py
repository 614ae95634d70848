"""The status subresource: the present state, for people, `kubectl get`, HPA and the next plan.

It is made whole at every look. Facts of the past (first start, the last world of a master that is
away) come from the last status, as far as the pods allow (see `world`). Once the job is over, its
end never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast_operator.plan import completed, memory_raise
from holdfast_operator.plan.inputs import Look
from holdfast_operator.plan.pods import WORKER, Role
from holdfast_operator.plan.view import JobOutcome
from holdfast_operator.spec.job import BUDGETS
from holdfast_operator.status.conditions import conditions, holding, rfc3339
from holdfast_operator.status.world import hears, kept_phase, world
from holdfast_wire import keys
from holdfast_wire.messages import JobPhase, JobStatus, PodPhase

_RUNNING: Final = frozenset({JobPhase.TRAINING, JobPhase.STOPPING, JobPhase.SUCCEEDED})


def report(look: Look, outcome: JobOutcome | None, *, finished: bool) -> dict[str, Any]:
    """Return the whole status object of a job; `finished`: it is over with this look."""
    if look.job.ended_at is not None:
        return {**look.job.status, **_pods(look)}  # only its pods still change
    job, master = look.job, look.master
    status: dict[str, Any] = {
        "observedGeneration": job.generation,
        **_pods(look),
        "selector": f"{keys.LABEL_JOB}={job.name},{keys.LABEL_ROLE}={WORKER}",
        "size": {
            "min": job.spec.size.least,
            "desired": (job.queued.asked if job.queued else job.spec).size.desired,
            "max": job.spec.size.most,
        },
    }
    if job.version.revision:
        status["admissionRevision"] = job.version.revision
    if master.status is not None:
        status |= _from_master(look, master.status)
    else:
        names = ("restarts", "budgets", "goodputPercent", "goodputAssumed", "lastCheckpoint")
        status |= {name: job.status[name] for name in names if name in job.status}
        if "world" in job.status:
            status["world"] = {**job.status["world"], **_members(look)}
    done = completed.written(look)
    if done:
        status[completed.FIELD] = done
    if job.master_endpoint:
        status["masterEndpoint"] = job.master_endpoint
    if look.avoided:
        status["excludedNodes"] = list(look.avoided)
    more_memory = memory_raise.raised(look)
    if more_memory:
        status[memory_raise.FIELD] = more_memory
    status |= _times(look, finished=finished)
    status["conditions"] = conditions(look, outcome, finished=finished)
    status["phase"] = _phase(look, outcome, status)
    return status


def _pods(look: Look) -> dict[str, Any]:
    workers = look.live(Role.WORKER)
    master = look.master
    # Only the master knows the agents. While it is away there are no more than it had, and a pod
    # with running containers proves nothing.
    before = look.job.status.get("readyReplicas", 0)
    if hears(look) and master.status is not None:
        ready = min(master.status.ready_nodes, len(workers))
    elif kept_phase(look) is not None:
        ready = min(before, len(workers))
    else:
        ready = min(before, sum(pod.ready for pod in workers))
    names = dict.fromkeys(slot.name for slot in sorted(look.pods))
    return {
        "replicas": len(workers),
        "readyReplicas": ready,
        "roles": [_role(look, name) for name in names],
    }


def _role(look: Look, name: str) -> dict[str, Any]:
    pods = [pod for slot, group in look.pods.items() if slot.name == name for pod in group]
    live = [pod for pod in pods if pod.live]
    return {
        "name": name,
        "active": len(live),
        "ready": sum(pod.ready for pod in live),
        "succeeded": sum(pod.phase is PodPhase.SUCCEEDED for pod in pods),
        "failed": sum(pod.phase is PodPhase.FAILED for pod in pods),
        "terminating": sum(pod.deleting for pod in live),
    }


def _from_master(look: Look, said: JobStatus) -> dict[str, Any]:
    result: dict[str, Any] = {
        "world": _world(look, said),
        "restarts": {
            "total": said.restarts_in_place + said.nodes_replaced,
            "inPlace": said.restarts_in_place,
            "replaced": said.nodes_replaced,
            "disrupted": said.nodes_disrupted,
            "rescaled": said.rescales,
        },
        "budgets": [
            {"name": BUDGETS[budget.kind], "used": budget.used, "limit": budget.limit}
            for budget in said.budgets
            if budget.used > 0 and budget.kind in BUDGETS
        ],
    }
    checkpoint = _checkpoint(look, said)
    if checkpoint:
        result["lastCheckpoint"] = checkpoint
    if said.job_seconds > 0:
        result["goodputPercent"] = max(0, min(100, round(said.goodput * 100)))
        if said.goodput_assumed:
            result["goodputAssumed"] = True
    return result


def _checkpoint(look: Look, said: JobStatus) -> dict[str, Any]:
    """Return the newest checkpoint; a known one keeps its time. Empty: there is none."""
    step = max(said.stored_step, said.memory_step)
    if not step:
        return {}
    tier = "Storage" if said.stored_step == step else "Memory"
    before: dict[str, Any] = look.job.status.get("lastCheckpoint", {})
    if (before.get("step"), before.get("tier")) == (step, tier):
        return before
    return {"step": step, "tier": tier, "time": rfc3339(look.now)}


def _world(look: Look, said: JobStatus) -> dict[str, Any]:
    before = look.job.status.get("world", {})
    result: dict[str, Any] = {
        "round": said.round,
        "epoch": said.epoch,
        **_members(look),
        "standbys": said.standby_nodes,
        "step": 0 if said.step_guessed else said.step,
    }
    if said.step_guessed:  # apart: a column of kubectl cannot show that it is a guess
        result["guessedStep"] = said.step
    known, active = before.get("activeReplicas", 0), result["activeReplicas"]
    if look.master.connected and known and active and active != known:
        result["lastScaleTime"] = rfc3339(look.now)
    elif "lastScaleTime" in before:
        result["lastScaleTime"] = before["lastScaleTime"]
    return result


def _members(look: Look) -> dict[str, int]:
    known = world(look)
    return {"size": known.size, "activeReplicas": known.active}


def _times(look: Look, *, finished: bool) -> dict[str, Any]:
    job, said = look.job, look.master.status
    times: dict[str, Any] = {}
    if "startTime" in job.status:
        times["startTime"] = job.status["startTime"]
    elif said is not None and said.phase is JobPhase.TRAINING:
        times["startTime"] = rfc3339(look.now)
    if finished:
        times["completionTime"] = rfc3339(look.now)
    return times


def _phase(look: Look, outcome: JobOutcome | None, status: Mapping[str, Any]) -> str:
    """Return one word for people; programs read the conditions."""
    true = set(holding(status["conditions"]))
    for condition, phase in (("Complete", "Succeeded"), ("Failed", "Failed")):
        if condition in true:
            return phase
    if look.job.spec.suspend:
        return "Suspended"
    if "startTime" not in status:
        return "Pending"
    if outcome is None and not hears(look) and not world(look).active:
        return "Restarting"
    return kept_phase(look) or _phase_of_world(look, scaling="Scaling" in true)


def _phase_of_world(look: Look, *, scaling: bool) -> str:
    said = look.master.status
    if scaling or (said is not None and said.phase is JobPhase.SAVING):
        return "Scaling"
    if said is None:
        trains = world(look).active >= look.job.spec.size.least
    else:
        trains = said.phase in _RUNNING
    return "Running" if trains else "Restarting"
