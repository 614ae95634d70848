"""The life of one round on this node: its phases and the table of its transitions."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class RoundPhase(enum.Enum):
    """Where the newest assigned round stands on this node."""

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
    """All processes ended by themselves; the master's word is awaited."""


class Happening(enum.Enum):
    """What moves a round from one phase to another."""

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


class InvalidTransitionError(Exception):
    """A happening that has no place in the table: a defect, told with its phase."""


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

TRANSITIONS: Mapping[tuple[RoundPhase, Happening], RoundPhase] = {
    **{(phase, Happening.KILL): target for phase, target in _KILL.items()},
    **{(phase, Happening.DEAD): RoundPhase.IDLE for phase in RoundPhase},
    (RoundPhase.IDLE, Happening.SPAWN): RoundPhase.STARTING,
    (RoundPhase.STARTING, Happening.FIRST_STEP): RoundPhase.RUNNING,
    (RoundPhase.STARTING, Happening.ALL_EXITED): RoundPhase.ENDED,
    (RoundPhase.RUNNING, Happening.ALL_EXITED): RoundPhase.ENDED,
    (RoundPhase.STARTING, Happening.STOP): RoundPhase.STOPPING,
    (RoundPhase.RUNNING, Happening.STOP): RoundPhase.STOPPING,
    (RoundPhase.STOPPING, Happening.STOP): RoundPhase.STOPPING,
    # Processes that ended workers left behind are ended too.
    (RoundPhase.ENDED, Happening.STOP): RoundPhase.STOPPING,
    # The order to stop crossed an order to kill, which is stronger.
    (RoundPhase.KILLING, Happening.STOP): RoundPhase.KILLING,
    (RoundPhase.KILLING, Happening.ALL_EXITED): RoundPhase.KILLING,
    (RoundPhase.STOPPING, Happening.ALL_EXITED): RoundPhase.STOPPING,
}
"""(phase, happening) → phase."""


def follow(phase: RoundPhase, happening: Happening) -> RoundPhase:
    """Return the phase after `happening`.

    Raises:
        InvalidTransitionError: the table has no such transition.
    """
    target = TRANSITIONS.get((phase, happening))
    if target is None:
        raise InvalidTransitionError(f"{happening.value!r} in phase {phase.value!r}")
    return target
