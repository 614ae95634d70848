"""Orders on their way: all savers are to stop, save or follow a schedule from one step on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from holdfast_master.policies.interval import Every


@dataclasses.dataclass(slots=True, kw_only=True)
class StepOrder:
    """An order to all savers for one step, which they must see before they come to it."""

    number: int = 0
    """Of the newest try; 0: none was sent."""
    step: int = 0
    tries: int = 0
    """That came too late."""
    acked: set[int] = dataclasses.field(default_factory=set)
    """Node ranks whose ranks have all seen it in time."""
    passed: int = 0
    """Newest step that a rank had completed when it saw an order."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Barrier(StepOrder):
    """Ranks are on their way to save and stop after the same step.

    Number 0: an earlier master set it, and what became of that is found out from the members.
    """

    reason: str
    patience: float
    """Time after the expected one that it may take, s."""
    found: dict[int, int] = dataclasses.field(default_factory=dict)
    """Node rank to the barrier of an earlier master that its ranks have seen."""

    def is_apart(self, running: Iterable[int]) -> bool:
        """Whether these nodes' ranks have seen different barriers of an earlier master."""
        seen = {self.found.get(rank, 0) for rank in running}
        return 0 in seen or len(seen) > 1


@dataclasses.dataclass(slots=True, kw_only=True)
class OfferedSchedule(StepOrder):
    """Intervals that are to hold from a step on, and that not all ranks are known to have seen."""

    every: Every


@dataclasses.dataclass(slots=True, kw_only=True)
class SaveOrder(StepOrder):
    """All ranks are on their way to save after the same step, and to go on."""

    round: int
    """In which the processes that are to save were started."""
    replica: int
    """Number of their replica; 0: the world has none."""
    reason: str
    requests: dict[int, int] = dataclasses.field(default_factory=dict)
    """Requests that wait for it, each with the newest step that was complete when it came: a
    checkpoint of any later one is what was wanted."""
