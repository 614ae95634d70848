"""Life of one round on this node: its phases and the table of its transitions."""

from __future__ import annotations

import enum
from collections.abc import Mapping


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


_KILL = dict.fromkeys(
    (
        RoundPhase.IDLE,
        RoundPhase.KILLING,
        RoundPhase.STARTING,
        RoundPhase.RUNNING,
        RoundPhase.STOPPING,
        RoundPhase.ENDED,
    ),
    RoundPhase.KILLING,
)

TRANSITIONS: Mapping[tuple[RoundPhase, RoundTrigger], RoundPhase] = {
    **{(phase, RoundTrigger.KILL): target for phase, target in _KILL.items()},
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

    Raises:
        InvalidRoundTransitionError: The table has no such transition.
    """
    target = TRANSITIONS.get((phase, happening))
    if target is None:
        raise InvalidRoundTransitionError(f"{happening.value!r} in phase {phase.value!r}")
    return target
