"""A queue of things that happen at virtual times, in a reproducible order."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class VirtualTime:
    """Runs callbacks in time order; equal times in the order in which they were set."""

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Have something happen at a time, not before now."""
        self._count += 1
        heapq.heappush(self._queue, (max(when, self.now), self._count, what))

    def after(self, delay: float, what: Callable[[], None]) -> None:
        """Have something happen after a delay, s."""
        self.at(self.now + delay, what)

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until a time, or until `stop` says so."""
        while self._queue and self._queue[0][0] <= until and not stop():
            when, _, what = heapq.heappop(self._queue)
            self.now = when
            what()
        if not stop():
            self.now = max(self.now, until)
