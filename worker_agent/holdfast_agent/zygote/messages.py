"""What an agent and its zygote say to each other, and its JSON form.

Values only: no sockets, no processes. The channel never leaves a family of processes of one
release, so the form carries no version and a malformed message is a defect, not an input.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Mode(enum.Enum):
    """How `SpawnRank.argv[0]` is to be understood."""

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
    mode: Mode = Mode.SCRIPT
    env: Mapping[str, str] = field(default_factory=dict)
    """Set over the environment that the agent was started with. HOLDFAST_PAGE and HOLDFAST_ROUND
    are added by the zygote."""
    stdout: str | None = None
    """File that stdout goes to (truncated, opened for appending); None: inherited."""
    stderr: str | None = None
    cwd: str | None = None
    """Working directory; None: the agent's."""
    stacks: str | None = None
    """File that `Zygote.dump_stacks` appends to; None: no dumps of this rank."""
    numa: str | None = None
    """torchrun's --numa-binding mode (`node`, `socket`, `exclusive`, `core-complex`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRound:
    """All workers of this node for one round; the round before must be dead."""

    round: int
    ranks: tuple[SpawnRank, ...]


# --- commands, agent → zygote ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start the workers of a round."""

    round: SpawnRound


@dataclass(frozen=True, slots=True)
class KillRound:
    """Signal the workers of a round; SIGKILL everything of it after `grace_s` seconds."""

    round: int
    signal: int
    grace_s: float


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """Make the workers of a round write the stacks of all their threads."""

    round: int


@dataclass(frozen=True, slots=True)
class PrepareStore:
    """Start a store process."""

    store_id: str
    host: str


@dataclass(frozen=True, slots=True)
class ReleaseStore:
    """End a store process."""

    store_id: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Kill every descendant and exit."""


# --- events, zygote → agent ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The zygote takes commands with low latency from now on (earlier ones are queued)."""

    fork_ok: bool
    """False: workers are started as fresh interpreters, which costs seconds."""
    reason: str
    """Why not; empty when fork_ok."""
    seconds: float
    """From fork to ready."""


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
class WorkerExited:
    """A worker process is gone and reaped."""

    round: int
    local_rank: int
    pid: int
    exit_code: int | None
    """Exit status, or None when a signal ended it."""
    signal: int | None
    mono_ns: int
    """CLOCK_MONOTONIC ns when it was seen."""


@dataclass(frozen=True, slots=True)
class RoundDead:
    """Every process of the round is gone and reaped, descendants of its workers included."""

    round: int


@dataclass(frozen=True, slots=True)
class StacksDumped:
    """The signal for a stack dump was sent; the files follow within milliseconds."""

    round: int
    local_ranks: tuple[int, ...]
    missing: tuple[int, ...]
    """Local ranks that cannot dump: not Python, or their handler was replaced."""


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
    """Empty after `release_store` or `shutdown`."""


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
    round: int | None = None
    """The round concerned; a failed spawn is followed by `RoundDead`."""


@dataclass(frozen=True, slots=True)
class ZygoteExited:
    """Made by the handle: the zygote is gone; its workers got SIGKILL (PDEATHSIG)."""

    exit_code: int | None
    signal: int | None


Command = Spawn | KillRound | DumpStacks | PrepareStore | ReleaseStore | Shutdown
Event = (
    Ready
    | ForkDisabled
    | WorkerStarted
    | WorkerExited
    | RoundDead
    | StacksDumped
    | StoreReady
    | StoreExited
    | LeaseExpired
    | Failure
    | ZygoteExited
)
