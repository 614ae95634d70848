"""Delivery time of a burst of messages, such as the assignments of a world.

Belongs here: counting, and one line of the log. Does not belong here: queues and streams.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

LOGGED_FROM = 100
"""Messages of one burst: fewer are no news."""


class Burst:
    """The messages that wait for agents, from the first until none waits any more."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with none; ``clock``: monotonic, s."""
        self._clock = clock
        self._waiting = self._messages = 0
        self._began = 0.0

    def more(self, messages: int) -> None:
        """So many more wait."""
        if not self._messages:
            self._began = self._clock()
        self._waiting += messages
        self._messages += messages

    def less(self, messages: int) -> None:
        """So many were taken by gRPC, or have nobody to go to any more."""
        self._waiting -= messages
        if self._waiting:
            return
        if self._messages >= LOGGED_FROM:
            passed = round(self._clock() - self._began, 3)
            log.info("agents are told", extra={"messages": self._messages, "seconds": passed})
        self._messages = 0
