"""Life of one round on this node: its phases, the exits that count, the goodput class of its time.

The cause of an exit decides whether the master must know; the consequence is the master's decision.
The sums by class are a coarse account for a master without memory: its own is finer and wins.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from holdfast_wire.messages import ClassSeconds


class RoundPhase(enum.Enum):
    """Phase of the newest assigned round on this node."""

    IDLE = "idle"
    """No process, nothing assigned that could start."""
    KILLING = "killing"
    """An order came; processes of the round before are being killed."""
    STARTING = "starting"
    """Processes are being started or have not all completed a step."""
    RUNNING = "running"
    """All local ranks have completed a step."""
    STOPPING = "stopping"
    """SIGTERM was sent, the grace runs."""
    ENDED = "ended"
    """All processes ended by themselves; the agent waits for the master's order."""


class RoundTrigger(enum.Enum):
    """Event that moves a round from one phase to another."""

    KILL = "kill"
    """Everything that lives gets SIGKILL now."""
    STOP = "stop"
    """Everything that lives gets SIGTERM, later SIGKILL."""
    DEAD = "dead"
    """Nothing of the round lives any more."""
    SPAWN = "spawn"
    """Processes of a new round are being started."""
    FIRST_STEP = "first step"
    ALL_EXITED = "all exited"
    """Every local rank ended by itself."""


class InvalidRoundTransitionError(Exception):
    """The table has no such transition: a defect; the text names phase and event."""


TRANSITIONS: Mapping[tuple[RoundPhase, RoundTrigger], RoundPhase] = {
    **{(phase, RoundTrigger.KILL): RoundPhase.KILLING for phase in RoundPhase},
    **{(phase, RoundTrigger.DEAD): RoundPhase.IDLE for phase in RoundPhase},
    (RoundPhase.IDLE, RoundTrigger.SPAWN): RoundPhase.STARTING,
    (RoundPhase.STARTING, RoundTrigger.FIRST_STEP): RoundPhase.RUNNING,
    (RoundPhase.STARTING, RoundTrigger.ALL_EXITED): RoundPhase.ENDED,
    (RoundPhase.RUNNING, RoundTrigger.ALL_EXITED): RoundPhase.ENDED,
    (RoundPhase.STARTING, RoundTrigger.STOP): RoundPhase.STOPPING,
    (RoundPhase.RUNNING, RoundTrigger.STOP): RoundPhase.STOPPING,
    (RoundPhase.STOPPING, RoundTrigger.STOP): RoundPhase.STOPPING,
    # Processes that ended workers left behind are ended too.
    (RoundPhase.ENDED, RoundTrigger.STOP): RoundPhase.STOPPING,
    # The order to stop crossed an order to kill, which is stronger.
    (RoundPhase.KILLING, RoundTrigger.STOP): RoundPhase.KILLING,
    (RoundPhase.KILLING, RoundTrigger.ALL_EXITED): RoundPhase.KILLING,
    (RoundPhase.STOPPING, RoundTrigger.ALL_EXITED): RoundPhase.STOPPING,
}
"""(phase, event) → phase."""


def follow(phase: RoundPhase, happening: RoundTrigger) -> RoundPhase:
    """Return the phase after `happening`.

    Raises InvalidRoundTransitionError: the table has no such transition.
    """
    target = TRANSITIONS.get((phase, happening))
    if target is None:
        raise InvalidRoundTransitionError(f"{happening.value!r} in phase {phase.value!r}")
    return target


SIGKILL = 9


class Orders(enum.Flag):
    """Actions of this agent against a round."""

    NONE = 0
    KILLED = enum.auto()
    """The agent sent SIGKILL."""
    STOPPED = enum.auto()
    """The agent sent SIGTERM, so no exit is evidence."""
    LEASE_EXPIRED = enum.auto()
    """The lease ran out: the zygote killed everything."""


def is_evidence(exit_code: int, orders: Orders) -> bool:
    """Return True if the master must know of a worker's exit (-N: signal N)."""
    if orders & (Orders.STOPPED | Orders.LEASE_EXPIRED):
        return False
    return not (Orders.KILLED in orders and exit_code == -SIGKILL)


def is_early_news(exit_code: int, orders: Orders, *, lease_is_stale: bool) -> bool:
    """Return True if a worker that is still being taken down is reported as ended already.

    lease_is_stale: workers kill themselves now, which is no failure, and the zygote is about to
        report the expired lease.

    Only a failure is worth the haste. For an exit code of 0 the agent waits for the process's real
    end, because a main thread that ended alone looks the same; so it does after an order of its
    own.
    """
    return not (exit_code == 0 or lease_is_stale or orders)


def tells_stopped(orders: Orders, *, next_waits: bool) -> bool:
    """Return True if the master must be told that no process of the round lives.

    next_waits: the next round is assigned, so the master knows. An expired lease is always
    reported.
    """
    return Orders.LEASE_EXPIRED in orders or (bool(orders) and not next_waits)


def is_shown(orders: Orders) -> bool:
    """Return True if a hello names the round: this agent has not ended it."""
    return not orders & (Orders.KILLED | Orders.STOPPED)


_CLASS = {
    RoundPhase.IDLE: "WAITING",
    RoundPhase.KILLING: "RESTART",
    RoundPhase.STARTING: "RESTART",
    RoundPhase.RUNNING: "PRODUCTIVE",
    RoundPhase.STOPPING: "CHECKPOINT",
    RoundPhase.ENDED: "WAITING",
}


def class_of(phase: RoundPhase, *, saving: bool) -> str:
    """Return the class of time spent in `phase`; saving: a rank writes a checkpoint."""
    if phase is RoundPhase.RUNNING and saving:
        return "CHECKPOINT"
    return _CLASS[phase]


def ledger(seconds: Mapping[str, float]) -> tuple[ClassSeconds, ...]:
    """Return the seconds by class since the agent started, for a hello."""
    return tuple(ClassSeconds(name=name, seconds=seconds[name]) for name in sorted(seconds))
