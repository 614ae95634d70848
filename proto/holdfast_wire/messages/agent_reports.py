"""What an agent reports of its workers. Frozen twins of `agent.proto`, nothing computed here."""

from __future__ import annotations

import dataclasses
import enum

from holdfast_wire.messages.checkpoint import SavingReport


class RankSection(enum.IntEnum):
    """RankSection is what a rank is doing."""

    UNSPECIFIED = 0
    INIT = 1
    FIRST_STEP = 2
    TRAIN = 3
    EVAL = 4
    CHECKPOINT = 5
    FINISHING = 6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Heartbeat: alive, and what the ranks do."""

    sequence: int = 0
    ranks: tuple[RankProgress, ...] = ()
    saving: SavingReport | None = None
    """Absent: not every rank follows the master's schedule of checkpoints."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """RankProgress is one rank's shared page, sampled by the agent."""

    local_rank: int = 0
    round: int = 0
    step: int = 0
    """Completed steps; 0: none yet, or a script without the SDK."""
    step_seconds: float = 0.0
    """Time of the last step, s."""
    since_step_seconds: float = 0.0
    """Since the last completed step, s."""
    samples: int = 0
    """Samples (or tokens) since the process started."""
    loss: float = 0.0
    section: RankSection = RankSection.UNSPECIFIED
    has_sdk: bool = False
    """False: no SDK in this process."""
    pid: int = 0
    first_step: int = 0
    """Step count at the first step() call of this process: restored step + 1. 0: none yet."""
    first_step_seconds: float = 0.0
    """From the process's start to its first completed step, s; 0: none yet."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    """WorkerExited: a training process ended by itself or by a signal that was not the agent's."""

    local_rank: int = 0
    rank: int = 0
    pid: int = 0
    exit_code: int = 0
    """Exit code, or -N where signal N ended it."""
    error_type: str = ""
    """From the error file, empty without one: exception type and message (at most 8 KiB)."""
    error_message: str = ""
    stderr_tail: str = ""
    """Last lines of standard error, where it is redirected (at most 8 KiB)."""
    matched_patterns: tuple[int, ...] = ()
    """Indices of Welcome.log_patterns that matched."""
    age_seconds: float = 0.0
    """Time between the exit and this message, s."""
    boundary: bool = False
    """The process ended after SAVE_AND_STOP was answered, with its boundary complete."""
    step: int = 0
    """Last step that it completed."""
    final: bool = False
    """Nobody starts it again: the torchrun around it has no restarts left and ends."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted:
    """RoundStarted: all local workers of the round run.

    Sent again at the first completed step of
    all of them.
    """

    first_step: bool = False
    step: int = 0
    """Step number of that first step (restored step + 1)."""
    killed_seconds: float = 0.0
    """Seconds from the assignment's arrival: old workers dead, new ones forked, first step."""
    spawned_seconds: float = 0.0
    first_step_seconds: float = 0.0
    cold_reason: str = ""
    """Nonempty: processes were spawned cold instead of forked, and why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoundStopped:
    """RoundStopped: no process of the round is alive on this node."""

    lease_expired: bool = False
    """The lease ran out and the zygote killed them."""
    exit_codes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StorePrepared:
    """StorePrepared: a TCPStore process waits for a round, or ended."""

    store_id: str = ""
    host: str = ""
    """IP and port; port 0: the store process ended or could not start (see error)."""
    port: int = 0
    error: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryReached:
    """BoundaryReached: every local rank answered SAVE_AND_STOP at `step`, saved and ended."""

    arm_id: int = 0
    step: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArmEcho:
    """ArmEcho.

    The step at which the local ranks saw an arm; max over the ranks, sent once all have seen
    it.
    """

    arm_id: int = 0
    seen_at_step: int = 0
    goes_on: bool = False
    """As in the Arm."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandDone:
    """CommandDone answers a command by its id."""

    command_id: int = 0
    ok: bool = False
    text: str = ""
    """Result or error: for DumpStacks the stacks, a text for each local rank (at most 256 KiB in
    all)."""
    stacks: tuple[RankStack, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """RankStack is the stack dump of one rank."""

    local_rank: int = 0
    rank: int = 0
    pid: int = 0
    text: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """Warmed: the zygote is ready; a round may start here at once."""

    seconds: float = 0.0
    cold_reason: str = ""
    """Nonempty: forking is not possible and why; workers will be started cold."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    """Goodbye: the agent ends on purpose."""

    reason: str = ""
    """For people."""
    terminated: bool = False
    """The agent got SIGTERM: a drain, preemption or scale-down by someone else."""
    failed: bool = False
    """Something makes going on impossible for the agent, for example its zygote ended."""
