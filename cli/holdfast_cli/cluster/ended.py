"""Final state of an ended job, from its object in the cluster. Pure.

The object has the status, without losses and checkpoints, and the events; nodes and goodput ended
with the master.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from holdfast_cli.final_state import FinalState
from holdfast_wire import messages as wire

_BUDGETS: Final = {
    "failures": wire.BudgetKind.FAILURES,
    "preemptions": wire.BudgetKind.PREEMPTIONS,
    "rescales": wire.BudgetKind.RESCALES,
    "noProgressRestarts": wire.BudgetKind.NO_PROGRESS,
}
"""By their names in the job's status."""


def ending_of(body: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> FinalState:
    """Return the final state of a job.

    Args:
        body: The job's object, with a completionTime.
        events: Kubernetes events about it.
    """
    listed = sorted((_event(one) for one in events), key=lambda event: event.unix_time)
    numbered = tuple(
        dataclasses.replace(event, sequence=number) for number, event in enumerate(listed, 1)
    )
    return FinalState(
        job=wire.GetJobResponse(status=_status(body)),
        nodes=None,
        events=wire.ListEventsResponse(events=numbered, newest_sequence=len(numbered)),
        goodput=None,
        unkept=frozenset({"Checkpoints", "Loss"} | _missing(body["status"])),
    )


def _missing(status: Mapping[str, Any]) -> set[str]:
    """Return the lines of `holdfast status` that a job without a master's word has not."""
    lines = {"budgets": "Budgets", "goodputPercent": "Goodput", "restarts": "Restarts"}
    return {line for name, line in lines.items() if name not in status}


def holding(status: Mapping[str, Any], kind: str) -> str:
    """Return reason and message of a condition; empty if the status has none of the kind."""
    for one in status.get("conditions") or ():
        if one["type"] == kind:
            return f"{one['reason']}: {one['message']}" if one["message"] else str(one["reason"])
    return ""


def _status(body: Mapping[str, Any]) -> wire.JobStatus:
    status, spec = body["status"], body["spec"]
    true = {one["type"]: one for one in status["conditions"] if one["status"] == "True"}
    end = true.get("Complete") or true.get("Failed") or {"reason": "", "message": ""}
    world, restarts = status.get("world") or {}, status.get("restarts") or {}
    size = status.get("size") or {}
    began = _unix(status.get("startTime"))
    ended = _unix(status["completionTime"])
    return wire.JobStatus(
        name=body["metadata"]["name"],
        uid=body["metadata"]["uid"],
        phase=wire.JobPhase.SUCCEEDED if "Complete" in true else wire.JobPhase.FAILED,
        reason=end["reason"],
        text=end["message"],
        epoch=world.get("epoch", 0),
        round=world.get("round", 0),
        step=world.get("step", 0) or world.get("guessedStep", 0),
        step_guessed=not world.get("step", 0) and "guessedStep" in world,
        replicas=spec["replicas"],
        min_replicas=size.get("min", 0),
        max_replicas=size.get("max", 0),
        restarts_in_place=restarts.get("inPlace", 0),
        nodes_replaced=restarts.get("replaced", 0),
        nodes_disrupted=restarts.get("disrupted", 0),
        rescales=restarts.get("rescaled", 0),
        budgets=tuple(_budgets(status.get("budgets") or ())),
        goodput=status.get("goodputPercent", 0) / 100,
        goodput_assumed=status.get("goodputAssumed", False),
        started_unix=began,
        finished_unix=ended,
        excluded_nodes=tuple(status.get("excludedNodes") or ()),
        generation=body["metadata"]["generation"],
        job_seconds=ended - began if began else 0.0,
    )


def _budgets(found: Iterable[Mapping[str, Any]]) -> Iterator[wire.BudgetState]:
    """Yield the budgets that this release knows; a newer operator may write others."""
    for one in found:
        if one["name"] in _BUDGETS:
            kind = _BUDGETS[one["name"]]
            yield wire.BudgetState(kind=kind, used=one["used"], limit=one["limit"])


def _event(one: Mapping[str, Any]) -> wire.JobEvent:
    count = (one.get("series") or {}).get("count", 1)
    again = f" ({count} times)" if count > 1 else ""
    warning = one.get("type") == "Warning"
    return wire.JobEvent(
        unix_time=_unix(one.get("eventTime") or one.get("deprecatedFirstTimestamp")),
        severity=wire.EventSeverity.WARNING if warning else wire.EventSeverity.NORMAL,
        reason=one["reason"],
        text=one.get("note", "") + again,
    )


def _unix(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
