"""What saving costs this rank: measured for the master, and consulted by nobody here.

Belongs here: turning instants into usual costs. Does not belong here: reading a clock (who saves
does), sending (`pacing`), what follows for the schedule (the master's `interval`).

Medians throughout: an evaluation, a slow batch or a save beside a busy disk is no usual cost, and a
schedule must not follow each of them.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Sequence

_SPANS = 32
"""Step times that a usual one is taken from."""
_SAVES = 15
"""Saves to memory that a usual one is taken from."""
_WRITES = 5
"""Saves to storage that a usual one is taken from; they are rare."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Usual costs in ns; 0: not measured yet."""

    step_ns: int = 0
    """A training step without any save."""
    memory_ns: int = 0
    """That a save to memory stops training."""
    storage_ns: int = 0
    """That a save to storage stops it, with what the steps take longer while it is written."""
    durable_ns: int = 0
    """From the beginning of such a save until the step is announced durable."""


class Meter:
    """Takes the instants of saves and steps, in ns of one clock."""

    def __init__(self) -> None:
        """Begin without a measurement."""
        self.measured = Measured()
        """Another object after each save."""
        self._stepped_ns = 0
        self._idle: collections.deque[int] = collections.deque(maxlen=_SPANS)
        """Step times while nothing was written."""
        self._busy: collections.deque[int] = collections.deque(maxlen=_SPANS)
        """Step times since the newest save to storage."""
        self._busy_steps = 0
        self._memory: collections.deque[int] = collections.deque(maxlen=_SAVES)
        self._storage: collections.deque[int] = collections.deque(maxlen=_WRITES)
        self._durable: collections.deque[int] = collections.deque(maxlen=_WRITES)
        self._write: tuple[int, int] | None = None
        """When the save to storage that is being written began, and how long it stopped training.
        """
        self._newest_is_memory = False

    def stepped(self, now_ns: int, *, writing: bool) -> None:
        """A step is complete; writing: a save of this rank is on its way to storage."""
        if self._stepped_ns:
            span = now_ns - self._stepped_ns
            if self._write is None:
                self._idle.append(span)
            else:
                self._busy.append(span)
                self._busy_steps += 1
        if self._write is not None and not writing:
            self._written(now_ns, *self._write)
        self._stepped_ns = now_ns

    def saved(self, began_ns: int, ended_ns: int, *, storage: bool) -> None:
        """A save like any other has ended: nothing was planned for it."""
        self._newest_is_memory = not storage
        if storage:
            self._write, self._busy_steps = (began_ns, ended_ns - began_ns), 0
            self._busy.clear()
        else:
            self._memory.append(ended_ns - began_ns)
            self._sum_up()

    def waited(self, wait_ns: int) -> None:
        """The newest save stopped training once more."""
        if self._newest_is_memory:
            self._memory[-1] += wait_ns
            self._sum_up()
        elif self._write is not None:
            self._write = (self._write[0], self._write[1] + wait_ns)

    def resumed(self, now_ns: int) -> None:
        """Training goes on after whatever followed a step: that is no part of the next."""
        self._stepped_ns = now_ns

    def _written(self, now_ns: int, began_ns: int, stop: int) -> None:
        self._write = None
        longer = _usual(self._busy) - _usual(self._idle) if self._idle and self._busy else 0
        self._storage.append(stop + max(0, longer * self._busy_steps))
        self._durable.append(now_ns - began_ns)
        self._sum_up()

    def _sum_up(self) -> None:
        self.measured = Measured(
            step_ns=_usual(self._idle or self._busy),
            memory_ns=_usual(self._memory),
            storage_ns=_usual(self._storage),
            durable_ns=_usual(self._durable),
        )


def _usual(values: Sequence[int]) -> int:
    return max(1, round(statistics.median(values))) if values else 0
