"""Virtual time: what happens when, in a reproducible order.

Belongs here: the queue of what is to happen. Does not belong here: luck, and what happens.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class VirtualTime:
    """Calls functions in time order; equal times in the order in which they were set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        """Calls so far."""
        self._count = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        """Have something happen at a time, not before now."""
        self._count += 1
        heapq.heappush(self._queue, (max(when, self.now), self._count, what, args))

    def after(self, delay: float, what: Callable[..., None], *args: Any) -> None:
        """Have something happen after a delay, s."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, what, args))

    def run(self, until: float, stop: Callable[[], bool] | None = None) -> bool:
        """Let time pass until a time, or until `stop` says so; return whether it did."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            if stop is not None and stop():
                return True
            self.now, _, what, args = heapq.heappop(queue)
            self.events += 1
            what(*args)
        if stop is not None and stop():
            return True
        self.now = max(self.now, until)
        return False
