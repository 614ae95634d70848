"""Final state of a job: the master's last answers, kept in the job's directory.

Belongs here: the four answers as one file, and answers to requests from it and from the evidence
that masters left. Does not belong here: getting them from a master (`runner.supervisor`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from google.protobuf import json_format

from holdfast_cli.errors import MasterRefusedError
from holdfast_cli.job_directory import JobHome, write_json
from holdfast_wire import codec, evidence_file
from holdfast_wire import messages as wire

Part = TypeVar("Part")
_FILE: Final = "ended.json"
_PARTS: Final[Mapping[str, type]] = {
    "job": wire.GetJobResponse,
    "nodes": wire.ListNodesResponse,
    "events": wire.ListEventsResponse,
    "goodput": wire.GetGoodputResponse,
}
_COMMANDS: Final[Mapping[type, str]] = {
    wire.ScaleRequest: "scale",
    wire.DrainNodeRequest: "drain",
    wire.RestartWorkerRequest: "restart",
    wire.TriggerCheckpointRequest: "checkpoint",
    wire.DumpStacksRequest: "stacks",
}
"""Commands that need a running job, by their requests."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FinalState:
    """Final state of a job; each part is the answer to the request of the same name."""

    job: wire.GetJobResponse
    nodes: wire.ListNodesResponse | None = dataclasses.field(default_factory=wire.ListNodesResponse)
    """None: a cluster does not keep them."""
    events: wire.ListEventsResponse = dataclasses.field(default_factory=wire.ListEventsResponse)
    goodput: wire.GetGoodputResponse | None = dataclasses.field(
        default_factory=wire.GetGoodputResponse
    )
    """None: a cluster does not keep it."""
    evidence: Path | None = None
    """Directory with the evidence of its incidents; None: nobody kept it."""
    unkept: frozenset[str] = frozenset()
    """Lines of `holdfast status` that a cluster does not keep."""

    @property
    def status(self) -> wire.JobStatus:
        """Status of the job at its end."""
        return self.job.status or wire.JobStatus()

    def answer(self, request: object) -> Any:
        """Return the answer that a master would give now.

        Raises:
            MasterRefusedError: the request asks a running job to do something, or for what
                only a master, which is gone, could answer.
        """
        match request:
            case wire.GetJobRequest():
                return self.job
            case wire.ListNodesRequest():
                return self._kept(self.nodes)
            case wire.ListEventsRequest():
                later = [e for e in self.events.events if e.sequence > request.after_sequence]
                kept = tuple(later[: request.limit] if request.limit else later)
                return dataclasses.replace(self.events, events=kept)
            case wire.GetGoodputRequest():
                return self._kept(self.goodput)
            case wire.ListIncidentsRequest():
                return self._incidents()
            case wire.GetIncidentRequest():
                return self._incident(request.incident_id)
            case wire.GetHealthRequest():
                return wire.GetHealthResponse(not_judged="the job has ended, and no world runs")
            case wire.StopJobRequest():
                return wire.StopJobResponse()
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

    def _incidents(self) -> wire.ListIncidentsResponse:
        every = self._kept(self.goodput).incidents
        try:
            kept = evidence_file.listing(self.evidence) if self.evidence is not None else {}
        except OSError:
            kept = {}
        with_evidence = tuple(one.id for one in every if one.id in kept)
        return wire.ListIncidentsResponse(incidents=every, with_evidence=with_evidence)

    def _incident(self, id_: str) -> wire.GetIncidentResponse:
        fact = {one.id: one for one in self._kept(self.goodput).incidents}.get(id_)
        if fact is None:
            raise MasterRefusedError(
                f"incident {id_!r} is none of the job's; `holdfast incidents` has them"
            )
        found: wire.IncidentEvidence | None = None
        why = "none was kept: the master wrote no file for it"
        try:
            if self.evidence is not None:
                found = evidence_file.read(self.evidence, id_)
        except evidence_file.EvidenceFileError as error:
            why = str(error)
        if found is None:
            return wire.GetIncidentResponse(incident=fact, evidence_missing=why)
        return wire.GetIncidentResponse(incident=fact, evidence=found)

    def snapshot(self) -> wire.WatchJobResponse:
        """Return the message that a watcher gets first and last."""
        nodes = self.nodes.nodes if self.nodes is not None else ()
        snapshot = wire.JobSnapshot(status=self.status, nodes=nodes, events=self.events.events)
        return wire.WatchJobResponse(message=snapshot)


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
        parts = {name: _part(twin, data[name]) for name, twin in _PARTS.items()}
        return FinalState(**parts, evidence=home.journal / evidence_file.DIRECTORY)
    except (OSError, ValueError, KeyError, TypeError, json_format.ParseError):
        return None


def _part(twin: type[Any], data: Any) -> Any:
    message = codec.proto_of(twin.__name__)()
    return codec.from_proto(json_format.ParseDict(data, message, ignore_unknown_fields=True))
