"""Final state of a job: the master's last answers, kept in the job's directory.

Belongs here: the four answers as one file, and answers to requests from it. Does not belong here:
getting them from a master (`runner.final_snapshot`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from google.protobuf import json_format

from holdfast_cli import ended_incidents
from holdfast_cli.errors import MasterRefusedError
from holdfast_cli.job_directory import JobHome, write_json
from holdfast_wire import codec, evidence_file
from holdfast_wire.messages import (
    DrainNodeRequest,
    DumpStacksRequest,
    GetGoodputRequest,
    GetGoodputResponse,
    GetHealthRequest,
    GetHealthResponse,
    GetIncidentRequest,
    GetJobRequest,
    GetJobResponse,
    JobSnapshot,
    JobStatus,
    ListEventsRequest,
    ListEventsResponse,
    ListIncidentsRequest,
    ListNodesRequest,
    ListNodesResponse,
    RestartWorkerRequest,
    ScaleRequest,
    StopJobRequest,
    StopJobResponse,
    TriggerCheckpointRequest,
    WatchJobResponse,
)

Part = TypeVar("Part")
_FILE: Final = "ended.json"
_PARTS: Final = ("job", "nodes", "events", "goodput")
_COMMANDS: Final[Mapping[type, str]] = {
    ScaleRequest: "scale",
    DrainNodeRequest: "drain",
    RestartWorkerRequest: "restart",
    TriggerCheckpointRequest: "checkpoint",
    DumpStacksRequest: "stacks",
}
"""Commands that need a running job, by their requests."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FinalState:
    """Final state of a job; each part is the answer to the request of the same name."""

    job: GetJobResponse
    nodes: ListNodesResponse | None = dataclasses.field(default_factory=ListNodesResponse)
    """None: a cluster does not keep them."""
    events: ListEventsResponse = dataclasses.field(default_factory=ListEventsResponse)
    goodput: GetGoodputResponse | None = dataclasses.field(default_factory=GetGoodputResponse)
    """None: a cluster does not keep it."""
    evidence: Path | None = None
    """Directory with the evidence of its incidents; None: nobody kept it."""
    unkept: frozenset[str] = frozenset()
    """Lines of `holdfast status` that a cluster does not keep."""

    @property
    def status(self) -> JobStatus:
        """Status of the job at its end."""
        return self.job.status or JobStatus()

    def answer(self, request: object) -> Any:
        """Return the answer that a master would give now.

        Raises:
            MasterRefusedError: the request asks a running job to do something, or for what
                only a master, which is gone, could answer.
        """
        match request:
            case GetJobRequest():
                return self.job
            case ListNodesRequest():
                return self._kept(self.nodes)
            case ListEventsRequest():
                later = [e for e in self.events.events if e.sequence > request.after_sequence]
                kept = tuple(later[: request.limit] if request.limit else later)
                return dataclasses.replace(self.events, events=kept)
            case GetGoodputRequest():
                return self._kept(self.goodput)
            case ListIncidentsRequest():
                return ended_incidents.listed(self._kept(self.goodput).incidents, self.evidence)
            case GetIncidentRequest():
                return ended_incidents.one(
                    self._kept(self.goodput).incidents, self.evidence, request
                )
            case GetHealthRequest():
                return GetHealthResponse(not_judged="the job has ended, and no world runs")
            case StopJobRequest():
                return StopJobResponse()
        command = _COMMANDS[type(request)]
        raise MasterRefusedError(
            f"job {self.status.name} has ended, and `holdfast {command}` needs a running one"
        )

    def _kept(self, part: Part | None) -> Part:
        if part is None:
            raise MasterRefusedError(
                f"job {self.status.name} has ended, and its master with it; the cluster keeps its "
                "status and, for an hour, its events"
            )
        return part

    def snapshot(self) -> WatchJobResponse:
        """Return the message that a watcher gets first and last."""
        nodes = self.nodes.nodes if self.nodes is not None else ()
        snapshot = JobSnapshot(status=self.status, nodes=nodes, events=self.events.events)
        return WatchJobResponse(message=snapshot)


def write(home: JobHome, ending: FinalState) -> None:
    """Write the final state of a job: 0600, whole or not at all."""
    parts = {name: getattr(ending, name) for name in _PARTS}
    write_json(
        home.path / _FILE,
        {
            name: json_format.MessageToDict(codec.to_proto(twin), preserving_proto_field_name=True)
            for name, twin in parts.items()
            if twin is not None
        },
    )


def read(home: JobHome) -> FinalState | None:
    """Return the final state of a job; None if the file is missing or unreadable."""
    try:
        data = json.loads((home.path / _FILE).read_text())
        return FinalState(
            job=_part(GetJobResponse, data["job"]),
            nodes=_part(ListNodesResponse, data["nodes"]),
            events=_part(ListEventsResponse, data["events"]),
            goodput=_part(GetGoodputResponse, data["goodput"]),
            evidence=home.journal / evidence_file.DIRECTORY,
        )
    except (OSError, ValueError, KeyError, TypeError, json_format.ParseError):
        return None


def _part(twin: type[Any], data: Any) -> Any:
    message = codec.PROTO[twin.__name__]()
    return codec.from_proto(json_format.ParseDict(data, message, ignore_unknown_fields=True))
