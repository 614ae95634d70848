"""What a job's master said last, kept in the job's directory so that an ended job can be asked.

Belongs here: the four answers as one file, and how requests are answered from it. Does not belong
here: getting them from a master (the runner does, at the job's end).
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

from google.protobuf import json_format

from holdfast_cli.failures import RefusedError
from holdfast_cli.home import JobHome, write_json
from holdfast_wire import codec
from holdfast_wire.messages import (
    GetGoodputRequest,
    GetGoodputResponse,
    GetJobRequest,
    GetJobResponse,
    JobSnapshot,
    JobStatus,
    ListEventsRequest,
    ListEventsResponse,
    ListNodesRequest,
    ListNodesResponse,
    StopJobRequest,
    StopJobResponse,
    WatchJobResponse,
)

_FILE: Final = "ended.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A job's last state; each part is the answer to the request of the same name."""

    job: GetJobResponse
    nodes: ListNodesResponse = dataclasses.field(default_factory=ListNodesResponse)
    events: ListEventsResponse = dataclasses.field(default_factory=ListEventsResponse)
    goodput: GetGoodputResponse = dataclasses.field(default_factory=GetGoodputResponse)

    @property
    def status(self) -> JobStatus:
        """How the job ended."""
        return self.job.status or JobStatus()

    def answer(self, request: object) -> Any:
        """Return what a master would answer now.

        Raises:
            RefusedError: the request asks a running job to do something.
        """
        match request:
            case GetJobRequest():
                return self.job
            case ListNodesRequest():
                return self.nodes
            case ListEventsRequest():
                later = [e for e in self.events.events if e.sequence > request.after_sequence]
                kept = tuple(later[: request.limit] if request.limit else later)
                return dataclasses.replace(self.events, events=kept)
            case GetGoodputRequest():
                return self.goodput
            case StopJobRequest():
                return StopJobResponse()
        what = type(request).__name__.removesuffix("Request")
        raise RefusedError(f"job {self.status.name} has ended, {what} needs a running one")

    def snapshot(self) -> WatchJobResponse:
        """Return what a watcher is told first and last."""
        return WatchJobResponse(
            message=JobSnapshot(
                status=self.status, nodes=self.nodes.nodes, events=self.events.events
            )
        )


def write(home: JobHome, ending: Ending) -> None:
    """Keep how the job ended; 0600, whole or not at all."""
    parts = {field.name: getattr(ending, field.name) for field in dataclasses.fields(ending)}
    write_json(
        home.path / _FILE,
        {
            name: json_format.MessageToDict(codec.to_proto(twin), preserving_proto_field_name=True)
            for name, twin in parts.items()
        },
    )


def read(home: JobHome) -> Ending | None:
    """Return how the job ended; None where nobody wrote that down, or not readably."""
    try:
        data = json.loads((home.path / _FILE).read_text())
        return Ending(
            job=_part(GetJobResponse, data["job"]),
            nodes=_part(ListNodesResponse, data["nodes"]),
            events=_part(ListEventsResponse, data["events"]),
            goodput=_part(GetGoodputResponse, data["goodput"]),
        )
    except (OSError, ValueError, KeyError, TypeError, json_format.ParseError):
        return None


def _part(twin: type[Any], data: Any) -> Any:
    message = codec.PROTO[twin.__name__]()
    return codec.from_proto(json_format.ParseDict(data, message, ignore_unknown_fields=True))
