"""Queue of jobs to look at: each at most once at a time, with a backoff after a failure.

It holds keys, not events: only the fact of a change matters.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
_FIRST_BACKOFF_SECONDS: Final = 0.1
_LONGEST_BACKOFF_SECONDS: Final = 60.0


class WorkQueue(Generic[Key]):
    """A queue of keys without doubles."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        """Keys in the queue."""
        self._busy: set[Key] = set()
        """Keys being worked on."""
        self._again: set[Key] = set()
        """Keys added while being worked on."""
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}

    @property
    def depth(self) -> int:
        """Number of waiting keys."""
        return len(self._waiting)

    def add(self, key: Key) -> None:
        """Queue a key to be looked at soon."""
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Queue a key to be looked at in `seconds`, or sooner if it waits for less."""
        loop = asyncio.get_running_loop()
        old = self._timers.get(key)
        if old is not None and not old.cancelled() and old.when() <= loop.time() + seconds:
            return
        if old is not None:
            old.cancel()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    async def take(self) -> Key:
        """Return the next key; `done` or `failed` must follow."""
        key = await self._ready.get()
        self._waiting.discard(key)
        self._busy.add(key)
        return key

    def done(self, key: Key) -> None:
        """Note that the key was looked at."""
        self._failures.pop(key, None)
        self._finish(key)

    def failed(self, key: Key) -> float:
        """Note that looking at the key failed; return the seconds until it comes again."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait: float = min(
            _LONGEST_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2 ** min(failures - 1, 20)
        )
        wait *= random.uniform(0.75, 1.25)  # noqa: S311 - jitter
        self._finish(key)
        self.add_after(key, wait)
        return wait

    def forget(self, key: Key) -> None:
        """Forget a key without work."""
        self._failures.pop(key, None)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _finish(self, key: Key) -> None:
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
