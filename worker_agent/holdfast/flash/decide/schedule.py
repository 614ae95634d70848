"""Which steps are saved to which tier: a schedule, the same on all ranks, without a clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """First step and distance per tier."""

    memory_every: int = 1
    """Steps between saves to memory; 0: none but those to storage. One copy each. Default 1."""
    storage_every: int = 100
    """Steps between saves to storage; 0: only when asked. Default 100."""
    first: int = 1
    """The first step that may be saved; 1 is the first that is completed. Default 1."""

    def __post_init__(self) -> None:
        """Raise ValueError naming a number that makes no schedule."""
        for name in ("memory_every", "storage_every", "first"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: expected a whole number ≥ 0")


@dataclass(frozen=True, slots=True)
class Due:
    """What a step is saved to; a step for storage goes through memory."""

    memory: bool
    storage: bool


def due(step: int, schedule: Schedule) -> Due:
    """Return what the schedule says about a completed step."""
    if step < schedule.first:
        return Due(memory=False, storage=False)
    storage = _falls_on(step, schedule.storage_every)
    return Due(memory=storage or _falls_on(step, schedule.memory_every), storage=storage)


def _falls_on(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
