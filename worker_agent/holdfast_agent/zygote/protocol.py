"""Messages between an agent and its zygote, and their channel.

Nothing here ever waits, because each side must go on when the other is stopped.
"""

from __future__ import annotations

import enum
import socket
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from signal import SIGKILL
from typing import Final, get_args

from holdfast_wire import datagrams


class ScriptMode(enum.Enum):
    """Kind of program that `SpawnRank.argv[0]` names."""

    SCRIPT = "script"
    """A Python file (or a directory or archive with `__main__.py`), run as `python FILE`."""
    MODULE = "module"
    """A module name, run as `python -m NAME`."""
    BINARY = "binary"
    """Any program, found on PATH (torchrun's --no-python)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRank:
    """One worker process to start."""

    local_rank: int
    slot: int
    """Slot in the shared page; the agent has reset it for this round."""
    argv: tuple[str, ...]
    mode: ScriptMode = ScriptMode.SCRIPT
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables to set over the agent's inherited environment. The zygote adds HOLDFAST_PAGE and
    HOLDFAST_ROUND."""
    stdout: str | None = None
    """File that stdout goes to (truncated, opened for appending); None: inherited."""
    stderr: str | None = None
    cwd: str | None = None
    """Working directory; None: the agent's."""
    server: str | None = None
    """Unix socket at which the rank serves torch's flight recorder; None: it serves none."""
    numa: str | None = None
    """torchrun's --numa-binding mode (`node`, `socket`, `exclusive`, `core-complex`)."""


# --- commands, agent → zygote ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """Start this node's workers of a round → `WorkerStarted` each (or `Failure` and `RoundDead`).

    The page's slots must have been reset for this round, and `RoundDead` of the round before
    received (or no round spawned yet). Without ranks: `RoundDead` at once.
    """

    round: int
    ranks: tuple[SpawnRank, ...]


@dataclass(frozen=True, slots=True)
class KillRound:
    """End a round → `WorkerExitedEvent` each, then `RoundDead`.

    SIGKILL goes to every process of the round at once. Any other signal goes to the workers'
    process groups, and SIGKILL follows to the rest after the grace. It may be repeated: a later
    SIGKILL cuts a grace short. It may also follow the exit of all workers, to end the processes
    that they left behind. A round that is dead or unknown: `RoundDead`.
    """

    round: int
    signal: int = SIGKILL
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PrepareStoreCommand:
    """Start a process whose TCPStore listens on the IP `host` → `StoreReady` | `StoreExited`.

    It belongs to no round and lives until `ReleaseStore`, the zygote's end or a stale lease.
    """

    store_id: str
    host: str


@dataclass(frozen=True, slots=True)
class ReleaseStore:
    """End a store process → `StoreExited` (nothing for an unknown one)."""

    store_id: str


@dataclass(frozen=True, slots=True)
class EndZygote:
    """Kill every descendant and exit → … `ZygoteExited`."""


# --- events, zygote → agent ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The zygote takes commands with low latency from now on (earlier ones are queued)."""

    reason: str
    """Reason to start workers as fresh interpreters, which costs seconds; empty: they fork."""
    seconds: float
    """Time from the fork to ready."""


@dataclass(frozen=True, slots=True)
class ForkDisabled:
    """From the next round on workers are started as fresh interpreters."""

    reason: str


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker process exists."""

    round: int
    local_rank: int
    pid: int
    forked: bool
    """False: started as a fresh interpreter or another program."""
    mono_ns: int
    """CLOCK_MONOTONIC ns just after the fork."""


@dataclass(frozen=True, slots=True)
class WorkerExitedEvent:
    """A worker process is gone and reaped."""

    round: int
    local_rank: int
    pid: int
    exit_code: int
    """Exit status; -N: signal N ended it."""
    mono_ns: int
    """CLOCK_MONOTONIC ns at which the zygote saw it."""


@dataclass(frozen=True, slots=True)
class RoundDead:
    """Every process of the round is gone and reaped, descendants of its workers included."""

    round: int


@dataclass(frozen=True, slots=True)
class StoreReady:
    """A TCPStore listens."""

    store_id: str
    port: int


@dataclass(frozen=True, slots=True)
class StoreExited:
    """A store process is gone."""

    store_id: str
    reason: str
    """Empty after `ReleaseStore` or `EndZygote`."""


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The agent's lease was stale, so all descendants (stores too) got SIGKILL.

    Their exits follow. Nothing is started until the agent calls `Page.begin_lease`.
    """

    age_s: float
    rounds: tuple[int, ...]
    """Rounds that had living processes."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A command could not be carried out; the zygote goes on."""

    text: str
    round: int
    """Number of the round; a failed spawn is followed by `RoundDead`."""


@dataclass(frozen=True, slots=True)
class ZygoteExited:
    """Made by the handle: the zygote is gone; its workers got SIGKILL (PDEATHSIG)."""

    exit_code: int | None
    """Exit status, -N: signal N; None: another process has reaped it."""


Command = Spawn | KillRound | PrepareStoreCommand | ReleaseStore | EndZygote
Event = (
    Ready
    | ForkDisabled
    | WorkerStarted
    | WorkerExitedEvent
    | RoundDead
    | StoreReady
    | StoreExited
    | LeaseExpired
    | Failure
    | ZygoteExited
)
Message = Command | Event

_KINDS: Final = get_args(Message)


def decode(body: bytes) -> Message:
    """Return the message that `datagrams.encode` made these bytes from; raises DatagramError."""
    message: Message = datagrams.decode(body, _KINDS)
    return message


def pair() -> tuple[Channel, Channel]:
    """Return two connected channels."""
    left, right = datagrams.pair()
    return Channel(left), Channel(right)


class Channel:
    """One end of the control channel."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected SOCK_SEQPACKET socket."""
        sock.setblocking(False)
        self._socket = sock
        self._outbox: deque[bytes] = deque()
        self.closed = False
        """True once the other end is gone, and all that it sent has been received."""
        self.broken = False
        """True once a message could not be sent because the other end is gone."""

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 after `close`."""
        return self._socket.fileno()

    @property
    def waiting(self) -> int:
        """Number of messages that the other side had no room for; `flush` tries again."""
        return len(self._outbox)

    def send(self, message: Message) -> None:
        """Send now if the other side has room, otherwise keep the message in order."""
        self._outbox.append(datagrams.encode(message))
        self.flush()

    def flush(self) -> None:
        """Send the kept messages, as far as there is room."""
        while self._outbox and not self.closed:
            try:
                datagrams.send(self._socket, self._outbox[0])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                # Not `closed`: what the other end sent before is still to be received.
                self.broken = True
                self._outbox.clear()
                return
            self._outbox.popleft()

    def receive(self) -> list[Message]:
        """Return the messages that have arrived; sets `closed` at the end of the stream."""
        found: list[Message] = []
        while not self.closed:
            try:
                body, _ = datagrams.receive(self._socket)
            except BlockingIOError:
                break
            except EOFError:
                self.closed = True
            else:
                found.append(decode(body))
        return found

    def abandon(self) -> None:
        """Forget the descriptor in a forked child, where other code closes it."""
        self.closed = True
        self._socket.detach()

    def close(self) -> None:
        """Close the descriptor; kept messages are dropped."""
        self.closed = True
        self._socket.close()
