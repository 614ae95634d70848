"""Count of connections from which no call with an identity of the job came.

gRPC refuses a handshake before Python hears of the connection, and says why on standard error. But
it asks for the server's certificate once for each connection, port probes and plaintext included.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

LOG_SECONDS = 10.0
"""Connections that became due within this share a line."""
GRACE_SECONDS = 60.0
"""A connection without a call counts after this long: twice the limit of a handshake."""
SEEN_SECONDS = 120.0
"""A peer's calls are of one connection where they are at most this far apart. Too short a time
hides a stranger; the system does not give a port out again that soon."""


class ConnectionCounter:
    """Counts connections, and those of them that showed an identity.

    A call stands for the oldest connection that waits for one: the count is right, whoever it was.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: collections.deque[float] = collections.deque()
        self._seen: dict[str, float] = {}
        self._due = 0

    @property
    def unidentified(self) -> int:
        """Connections so far that have shown no identity; the newest may yet do so."""
        return self._due + len(self._waiting)

    def opened(self) -> None:
        """Take a new connection; gRPC calls this in threads of its own."""
        self._waiting.append(self._clock())

    def identified(self, peer: str) -> None:
        """Take a call with an identity of the job, from this address and port."""
        now = self._clock()
        if now - self._seen.get(peer, -SEEN_SECONDS) >= SEEN_SECONDS and self._waiting:
            self._waiting.popleft()
        self._seen[peer] = now

    def take_due(self) -> int:
        """Return how many connections became due since the last call of this."""
        now, before = self._clock(), self._due
        while self._waiting and now - self._waiting[0] >= GRACE_SECONDS:
            self._waiting.popleft()
            self._due += 1
        self._seen = {peer: at for peer, at in self._seen.items() if now - at < SEEN_SECONDS}
        return self._due - before

    async def run(self) -> None:
        """Log what became due, until cancelled."""
        while True:
            await asyncio.sleep(LOG_SECONDS)
            count = self.take_due()
            if count:
                log.warning(
                    "connections without an identity of this job; gRPC's lines about handshakes, "
                    "on standard error, say why",
                    extra={"count": count, "total": self._due},
                )
