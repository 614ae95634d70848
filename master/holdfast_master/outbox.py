"""Messages that wait for one peer: bounded, with stale ones replaced by their successors.

Belongs here: the queue. Does not belong here: gRPC, and who the peer is.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry(Generic[Item]):
    kind: type
    item: Item


class Outbox(Generic[Item]):
    """A queue with one reader. Items of a coalesced kind replace the one that still waits."""

    def __init__(self, limit: int, coalesced: frozenset[type]) -> None:
        """Make a queue of at most `limit` items; `coalesced` kinds are in it once at most."""
        self._limit = limit
        self._coalesced = coalesced
        # Nearly always empty, ten thousand times over: a deque and an Event take 1.5 KB.
        self._entries: list[_Entry[Item]] = []
        self._reader: asyncio.Future[None] | None = None
        self._closed = False
        self.on_item: Callable[[], None] | None = None
        """Called when there is something to take, or nothing any more, where nobody awaits it."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, kind: type, item: Item) -> bool:
        """Queue `item`; False where the queue is full, and the item is not taken."""
        if kind in self._coalesced:
            stale = next((entry for entry in self._entries if entry.kind is kind), None)
            if stale is not None:
                self._entries.remove(stale)
        if len(self._entries) >= self._limit:
            return False
        self._entries.append(_Entry(kind, item))
        self._wake()
        return True

    def discard(self) -> None:
        """Drop what is queued and let the reader end at once."""
        self._entries.clear()
        self.close()

    def close(self) -> None:
        """Let the reader end once it has taken what is queued."""
        self._closed = True
        self._wake()

    def pop(self) -> Item | None:
        """Return the oldest item; None where there is none."""
        return self._entries.pop(0).item if self._entries else None

    async def get(self) -> Item | None:
        """Return the oldest item; None once the queue is closed and empty."""
        while not self._entries:
            if self._closed:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._entries.pop(0).item

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        if self.on_item is not None:
            self.on_item()
