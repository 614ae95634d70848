"""The calls of JobService, question and answer. Frozen twins of `job.proto`."""

from __future__ import annotations

import dataclasses

from holdfast_wire.messages.job import (
    GoodputEntry,
    Incident,
    JobEvent,
    JobStatus,
    NodeGoodput,
    NodeInfo,
)
from holdfast_wire.messages.spec import MasterSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GetJobRequest:
    """GetJobRequest."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GetJobResponse:
    """GetJobResponse."""

    status: JobStatus | None = None
    spec: MasterSpec | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchJobRequest:
    """WatchJobRequest."""

    resume_token: str = ""
    """From an earlier WatchJobResponse; empty: begin with a snapshot."""
    min_interval_seconds: float = 0.0
    """Least time between two status deltas, s; 0: 0.5. Events are never held back."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchJobResponse:
    """WatchJobResponse."""

    resume_token: str = ""
    """Continue after this message."""
    message: JobSnapshot | JobStatus | JobEvent | Incident | WatchReset | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchReset:
    """WatchReset."""

    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """JobSnapshot."""

    status: JobStatus | None = None
    nodes: tuple[NodeInfo, ...] = ()
    events: tuple[JobEvent, ...] = ()
    """The newest events, oldest first."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListNodesRequest:
    """ListNodesRequest."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListNodesResponse:
    """ListNodesResponse."""

    nodes: tuple[NodeInfo, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListEventsRequest:
    """ListEventsRequest."""

    after_sequence: int = 0
    """Only events after this sequence."""
    limit: int = 0
    """0: 1000."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListEventsResponse:
    """ListEventsResponse."""

    events: tuple[JobEvent, ...] = ()
    newest_sequence: int = 0
    """Sequence of the newest event that exists."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GetGoodputRequest:
    """GetGoodputRequest."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GetGoodputResponse:
    """GetGoodputResponse."""

    totals: tuple[GoodputEntry, ...] = ()
    node_seconds: float = 0.0
    """Sum of all classes."""
    nodes: tuple[NodeGoodput, ...] = ()
    incidents: tuple[Incident, ...] = ()
    goodput: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRequest:
    """ScaleRequest."""

    replicas: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaleResponse:
    """ScaleResponse."""

    generation: int = 0
    """Generation of the spec that carries it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RestartWorkerRequest:
    """RestartWorkerRequest."""

    node_rank: int | None = None
    """Absent: all ranks (a new round in place). Present: replace the agent of this node rank."""
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RestartWorkerResponse:
    """RestartWorkerResponse."""

    round: int = 0
    """The round that the restart leads to is newer than this one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DumpStacksRequest:
    """DumpStacksRequest."""

    node_rank: int | None = None
    """Absent: all nodes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DumpStacksResponse:
    """DumpStacksResponse."""

    nodes: tuple[NodeStacks, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeStacks:
    """NodeStacks."""

    node_rank: int = 0
    error: str = ""
    stacks: tuple[StackText, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StackText:
    """StackText."""

    rank: int = 0
    pid: int = 0
    text: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DrainNodeRequest:
    """DrainNodeRequest."""

    node_rank: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DrainNodeResponse:
    """DrainNodeResponse."""

    text: str = ""
    """For people: what will happen."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StopJobRequest:
    """StopJobRequest."""

    reason: str = ""
    now: bool = False
    """Skip the checkpoint boundary."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StopJobResponse:
    """StopJobResponse."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TriggerCheckpointRequest:
    """TriggerCheckpointRequest."""

    reason: str = ""
    timeout_seconds: float = 0.0
    """How long to wait for the commit, s; 0: the master's default."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TriggerCheckpointResponse:
    """TriggerCheckpointResponse."""

    step: int = 0
    """The step that was saved."""
    path: str = ""
    """The directory that has it."""
