"""What the cluster keeps of a job that has ended, as its master would say it. Pure.

Its status and its events; who its nodes were and where their time went ended with the master.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast_cli.ending import Ending
from holdfast_cli.failures import RefusedError
from holdfast_wire.messages import (
    EventSeverity,
    GetGoodputRequest,
    GetJobResponse,
    JobEvent,
    JobPhase,
    JobStatus,
    ListEventsResponse,
    ListNodesRequest,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEnding(Ending):
    """An ending without nodes and goodput."""

    def answer(self, request: object) -> Any:
        """Return what a master would answer now.

        Raises:
            RefusedError: only a master, which is gone, could answer.
        """
        if isinstance(request, ListNodesRequest | GetGoodputRequest):
            raise RefusedError(
                f"job {self.status.name} has ended, and its master with it; the cluster keeps its "
                "status and, for an hour, its events"
            )
        # Not super(): slots make the class anew, which a bare super() does not find.
        return Ending.answer(self, request)


def ending_of(body: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Ending:
    """Return how a job ended.

    Args:
        body: Its object, with a completionTime.
        events: Kubernetes events about it.
    """
    told = sorted((_event(one) for one in events), key=lambda event: event.unix_time)
    numbered = tuple(
        dataclasses.replace(event, sequence=number) for number, event in enumerate(told, 1)
    )
    return ClusterEnding(
        job=GetJobResponse(status=_status(body)),
        events=ListEventsResponse(events=numbered, newest_sequence=len(numbered)),
    )


def holding(status: Mapping[str, Any], kind: str) -> str:
    """Reason and message of a condition; empty where the status has none of the kind."""
    for one in status.get("conditions") or ():
        if one["type"] == kind:
            return f"{one['reason']}: {one['message']}" if one["message"] else str(one["reason"])
    return ""


def _status(body: Mapping[str, Any]) -> JobStatus:
    status, spec = body["status"], body["spec"]
    true = {one["type"]: one for one in status["conditions"] if one["status"] == "True"}
    end = true.get("Complete") or true.get("Failed") or {"reason": "", "message": ""}
    world, restarts = status.get("world") or {}, status.get("restarts") or {}
    size = status.get("size") or {}
    began = _unix(status.get("startTime"))
    ended = _unix(status["completionTime"])
    return JobStatus(
        name=body["metadata"]["name"],
        uid=body["metadata"]["uid"],
        phase=JobPhase.SUCCEEDED if "Complete" in true else JobPhase.FAILED,
        reason=end["reason"],
        text=end["message"],
        epoch=world.get("epoch", 0),
        round=world.get("round", 0),
        step=world.get("step", 0),
        replicas=spec["replicas"],
        min_replicas=size.get("min", 0),
        max_replicas=size.get("max", 0),
        restarts_in_place=restarts.get("inPlace", 0),
        nodes_replaced=restarts.get("replaced", 0),
        nodes_disrupted=restarts.get("disrupted", 0),
        rescales=restarts.get("rescaled", 0),
        goodput=status.get("goodputPercent", 0) / 100,
        started_unix=began,
        finished_unix=ended,
        excluded_nodes=tuple(status.get("excludedNodes") or ()),
        generation=body["metadata"]["generation"],
        job_seconds=ended - began if began else 0.0,
    )


def _event(one: Mapping[str, Any]) -> JobEvent:
    count = (one.get("series") or {}).get("count", 1)
    again = f" ({count} times)" if count > 1 else ""
    warning = one.get("type") == "Warning"
    return JobEvent(
        unix_time=_unix(one.get("eventTime") or one.get("deprecatedFirstTimestamp")),
        severity=EventSeverity.WARNING if warning else EventSeverity.NORMAL,
        reason=one["reason"],
        text=one.get("note", "") + again,
    )


def _unix(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
