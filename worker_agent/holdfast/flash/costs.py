"""What saving costs this rank: measured for the master, and consulted by nobody here.

Belongs here: turning instants into smoothed costs. Does not belong here: reading a clock (who saves
does), sending (`pacing`), what follows for the schedule (the master's `interval`).
"""

from __future__ import annotations

import collections
import dataclasses
import statistics

_SHARE = 0.3
"""Of a new value in the smoothed one: three saves outweigh all before."""
_SPANS = 32
"""Step times that a usual one is taken from."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Costs in ns; 0: not measured yet."""

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
        self._stepped_ns = 0
        self._idle: collections.deque[int] = collections.deque(maxlen=_SPANS)
        """Step times while nothing was written."""
        self._busy: collections.deque[int] = collections.deque(maxlen=_SPANS)
        """Step times since the newest save to storage."""
        self._busy_steps = 0
        self._write: tuple[int, int] | None = None
        """When the save to storage that is being written began, and how long it stopped training.
        """
        self._memory: tuple[int, int] | None = None
        """Smoothed cost before the newest save, and how long that stopped training; None: the
        newest was to storage."""

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
        """A save like any other has ended: nothing was planned for it. Call it before `resumed`."""
        stop = ended_ns - began_ns
        if storage:
            self._write, self._busy_steps = (began_ns, stop), 0
            self._busy.clear()
            self._memory = None
        else:
            self._memory = (self.measured.memory_ns, stop)
            self._count_memory()

    def waited(self, wait_ns: int) -> None:
        """The newest save stopped training once more."""
        if self._memory is not None:
            self._memory = (self._memory[0], self._memory[1] + wait_ns)
            self._count_memory()
        elif self._write is not None:
            self._write = (self._write[0], self._write[1] + wait_ns)

    def _count_memory(self) -> None:
        assert self._memory is not None, "a save to memory was the newest"  # noqa: S101
        memory_ns = _smooth(*self._memory)
        self.measured = dataclasses.replace(self.measured, memory_ns=memory_ns)

    def resumed(self, now_ns: int) -> None:
        """Training goes on after whatever followed a step: that is no part of the next."""
        self._stepped_ns = now_ns

    def _written(self, now_ns: int, began_ns: int, stop: int) -> None:
        self._write = None
        drag = 0
        if self._idle and self._busy:
            # Medians: an evaluation or a slow batch is not the write's fault.
            longer = statistics.median(self._busy) - statistics.median(self._idle)
            drag = max(0, round(longer * self._busy_steps))
        old = self.measured
        self.measured = dataclasses.replace(
            old,
            storage_ns=_smooth(old.storage_ns, stop + drag),
            durable_ns=_smooth(old.durable_ns, now_ns - began_ns),
        )


def _smooth(old: int, new: int) -> int:
    new = max(1, new)
    return round(old + _SHARE * (new - old)) if old else new
