"""Inputs of the core: all that can happen to a job master, as frozen values."""

from __future__ import annotations

import dataclasses
import enum

from holdfast_wire.messages import Fence, Hello
from holdfast_wire.messages.agent import SessionRequestMessage
from holdfast_wire.messages.job import JobServiceRequest
from holdfast_wire.messages.operator import SyncRequestMessage


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """A point in time on both clocks."""

    mono: float
    """Monotonic clock of the master's process, s: every deadline is kept on it."""
    unix: float
    """Wall clock, s since 1970: only shown to people."""


class DisconnectCause(enum.Enum):
    """The cause for which an agent's stream ended."""

    RESET = "reset"
    """The transport broke or the peer's process died."""
    CLOSED = "closed"
    """The agent half-closed its stream in order."""
    REFUSED = "refused"
    """The shell ended it: a malformed message, a full queue, a CloseSession instruction."""


SyncMessage = SyncRequestMessage
"""A message of an operator."""
AgentMessage = SessionRequestMessage
"""A message of an agent; a Hello only as the first one of a stream."""
UserRequest = JobServiceRequest
"""Those that change something, or need an agent's answer, have a handler in `user_requests`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Connected:
    """An agent opened a stream and said hello; its rank matches its certificate."""

    session: int
    """Number that the shell gives each stream; never used twice in one process."""
    hello: Hello
    fence: Fence | None = None
    """Of the request that carried the hello."""
    raw: bytes = dataclasses.field(default=b"", compare=False, repr=False)
    """That request as it came, for the recording of inputs; empty: it is encoded anew."""


@dataclasses.dataclass(frozen=True, slots=True)
class Disconnected:
    """An agent's stream ended."""

    session: int
    cause: DisconnectCause = DisconnectCause.RESET


@dataclasses.dataclass(frozen=True, slots=True)
class Received:
    """An agent sent a message on an open stream."""

    session: int
    fence: Fence | None
    message: AgentMessage
    raw: bytes = dataclasses.field(default=b"", compare=False, repr=False)
    """The request as it came, for the recording of inputs; empty: it is encoded anew."""


@dataclasses.dataclass(frozen=True, slots=True)
class OperatorConnected:
    """The operator (locally: the runner) opened its Sync stream; it replaces an earlier one."""


@dataclasses.dataclass(frozen=True, slots=True)
class OperatorDisconnected:
    """The operator's Sync stream ended and no other has replaced it."""


@dataclasses.dataclass(frozen=True, slots=True)
class OperatorMessage:
    """The operator (locally: the runner) said something on its stream."""

    message: SyncMessage


@dataclasses.dataclass(frozen=True, slots=True)
class UserCall:
    """A user asked for something; the core answers with one Reply or Refuse of this id."""

    request_id: int
    request: UserRequest
    who: str
    """The caller for the event, for example "user"."""


@dataclasses.dataclass(frozen=True, slots=True)
class PeerRefused:
    """A known peer called what its role may not call; it becomes an event."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class JournalNoted:
    """The shell found something about the journal that people must know; it becomes an event."""

    reason: str
    """`EventReason.JOURNAL_DAMAGED`, `JOURNAL_TROUBLED` or `JOURNAL_MENDED`."""
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Ticked:
    """A deadline (see Core.next_deadline) has come; the shell has drained its input before."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stalled:
    """The shell's own loop stood still: every deadline is put off by this long."""

    seconds: float


Input = (
    Connected
    | Disconnected
    | Received
    | OperatorConnected
    | OperatorDisconnected
    | OperatorMessage
    | UserCall
    | PeerRefused
    | JournalNoted
    | Ticked
    | Stalled
)
"""An input of `Core.handle`."""
