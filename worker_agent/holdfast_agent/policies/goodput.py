"""Goodput class of this node's time now, and the sums so far.

A coarse account for a master without memory; the master's own account is finer and wins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from holdfast_agent.policies.round_phases import RoundPhase
from holdfast_wire.messages import ClassSeconds

PRODUCTIVE = "PRODUCTIVE"
CHECKPOINT = "CHECKPOINT"
RESTART = "RESTART"
WAITING = "WAITING"

_CLASS = {
    RoundPhase.IDLE: WAITING,
    RoundPhase.KILLING: RESTART,
    RoundPhase.STARTING: RESTART,
    RoundPhase.RUNNING: PRODUCTIVE,
    RoundPhase.STOPPING: CHECKPOINT,
    RoundPhase.ENDED: WAITING,
}


def class_of(phase: RoundPhase, *, saving: bool) -> str:
    """Return the class of time spent in `phase`; saving: a rank writes a checkpoint."""
    if phase is RoundPhase.RUNNING and saving:
        return CHECKPOINT
    return _CLASS[phase]


@dataclasses.dataclass(frozen=True, slots=True)
class SecondsByClass:
    """Seconds by class since the agent started."""

    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def add(self, name: str, seconds: float) -> SecondsByClass:
        """Return the sums with `seconds` more of a class."""
        return SecondsByClass({**self.seconds, name: self.seconds.get(name, 0.0) + seconds})

    def entries(self) -> tuple[ClassSeconds, ...]:
        """Return the sums for a hello."""
        return tuple(
            ClassSeconds(name=name, seconds=self.seconds[name]) for name in sorted(self.seconds)
        )
