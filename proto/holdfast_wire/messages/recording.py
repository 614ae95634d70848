"""Frozen twins of `recording.proto`: field for field the same names, nothing computed here."""

from __future__ import annotations

import dataclasses

from holdfast_wire.messages.job_calls import (
    DrainNodeRequest,
    DumpStacksRequest,
    RestartWorkerRequest,
    ScaleRequest,
    StopJobRequest,
    TriggerCheckpointRequest,
)
from holdfast_wire.messages.operator import SyncRequest


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOpened:
    """RecordingOpened heads a file of inputs."""

    format: int = 0
    epoch: int = 0
    incarnation: str = ""
    job_name: str = ""
    job_uid: str = ""
    version: str = ""
    """Release that wrote it."""
    part: int = 0
    """0: it begins with the master; others go on where the one before ends."""
    mono: float = 0.0
    unix_time: float = 0.0
    sequence: int = 0
    """Newest record of the journal at that moment."""
    settings: str = ""
    """Time limits of the core, JSON."""
    papers: bytes = b""
    """What the core knew beside the journal, JSON, deflated; empty in part 0."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InputRecorded:
    """InputRecorded is one input of the core, and how much it led to."""

    mono: float = 0.0
    unix_time: float = 0.0
    sequence: int = 0
    """Newest record of the journal once it was handled."""
    instructions: int = 0
    """Instructions that it led to, records not counted."""
    failed: bool = False
    """The core could not take it."""
    input: (
        AgentSaid
        | AgentDisconnected
        | OperatorStream
        | SyncRequest
        | UserAsked
        | ShellNoted
        | DeadlineCame
        | MasterStalled
        | None
    ) = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentSaid:
    """AgentSaid."""

    session: int = 0
    """Number of its stream."""
    request: bytes = b""
    """A SessionRequest, as it came."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentDisconnected:
    """AgentDisconnected."""

    session: int = 0
    cause: str = ""
    """reset, closed or refused."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStream:
    """OperatorStream."""

    connected: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UserAsked:
    """UserAsked."""

    request_id: int = 0
    who: str = ""
    request: (
        ScaleRequest
        | RestartWorkerRequest
        | DumpStacksRequest
        | DrainNodeRequest
        | StopJobRequest
        | TriggerCheckpointRequest
        | None
    ) = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShellNoted:
    """ShellNoted: something about the journal, or a peer that was refused."""

    reason: str = ""
    text: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineCame:
    """DeadlineCame."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MasterStalled:
    """MasterStalled."""

    seconds: float = 0.0
