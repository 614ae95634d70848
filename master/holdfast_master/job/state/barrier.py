"""Barriers on their way: all ranks save after the same step, and stop there or go on.

Belongs here: the progress of a barrier. Does not belong here: setting one, and what follows from it
(`rescale.barrier`, `checkpoints.on_demand`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(slots=True)
class Barrier:
    """Ranks are on their way to save and stop after the same step."""

    reason: str
    barrier_id: int
    """0: an earlier master set it, and what became of that is found out from the members."""
    step: int
    patience: float
    """Time after the expected one that it may take, s."""
    tries: int = 0
    acked: set[int] = dataclasses.field(default_factory=set)
    found: dict[int, int] = dataclasses.field(default_factory=dict)
    """Node rank to the barrier of an earlier master that its ranks have seen."""
    passed: int = 0
    """Newest step that a rank had completed when it saw a barrier."""

    def is_apart(self, running: Iterable[int]) -> bool:
        """Return whether these nodes' ranks have seen different barriers of an earlier master."""
        seen = {self.found.get(rank, 0) for rank in running}
        return 0 in seen or len(seen) > 1


@dataclasses.dataclass(slots=True, kw_only=True)
class SaveOrder:
    """All ranks are on their way to save after the same step, and to go on."""

    round: int
    """In which the processes that are to save were started."""
    replica: int
    """Number of their replica; 0: the world has none."""
    reason: str
    barrier_id: int = 0
    step: int = 0
    tries: int = 0
    passed: int = 0
    """Newest step that a rank had completed when it saw the barrier."""
    acked: set[int] = dataclasses.field(default_factory=set)
    """Node ranks whose ranks have all seen it."""
    requests: dict[int, int] = dataclasses.field(default_factory=dict)
    """Requests that wait for it, each with the newest step that was complete when it came: a
    checkpoint of any later one is what was wanted."""
