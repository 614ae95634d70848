"""Slow work of a keeper's service: done by a thread of its own, its outcome taken in by the owner.

Belongs here: the order of the work, how much of it is under way, what wakes the owner. Does not
belong here: what is done (`service`, `led`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from holdfast import faults

log: Final = logging.getLogger(__name__)

_T = TypeVar("_T")


def outcome_of(
    what: str, work: Callable[[], _T], *expected: type[Exception]
) -> tuple[_T | None, str]:
    """Do something at the top of a thread; return what it returned, or None and why it failed.

    expected: errors whose text is for a user; any other is logged with its trace, and counted.
    """
    try:
        return work(), ""
    except expected as error:
        return None, str(error)
    except Exception as error:  # the top of a thread
        log.exception("%s failed (fault %d)", what, faults.count(__name__))
        return None, f"{type(error).__name__}: {error}"


def failure_of(what: str, work: Callable[[], None], *expected: type[Exception]) -> str:
    """Do something at the top of a thread; return why it failed, empty if it did not."""
    return outcome_of(what, work, *expected)[1]


class Labour:
    """One thread that does one thing after another."""

    def __init__(self) -> None:
        """Take in work from now on; it is done from `start` on."""
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="holdfast-keeper", daemon=True)
        self._lock, self._ended = threading.Lock(), False
        """Of the descriptors: whether they are closed."""
        self.in_flight = 0
        """Things handed out whose outcome was not taken in yet."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def end(self) -> None:
        """Wait until what was handed out is done, and end; outcomes are not taken in any more."""
        self._work.put(None)
        self._thread.join()
        with self._lock:
            self._ended = True
            os.close(self._wake_read)
            os.close(self._wake_write)

    def fileno(self) -> int:
        """Return what is readable once there is something to take in."""
        return self._wake_read

    def wake(self) -> None:
        """Wake the owner; from any thread, and also after the end, when nobody is left to wake."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._ended:  # the number may be another file's by now
                os.write(self._wake_write, b"x")

    def post(self, result: Callable[[], None]) -> None:
        """Have something done by the owner's thread; from any thread."""
        self._results.put(result)
        self.wake()

    def hand_out(self, work: Callable[[], _T], taken: Callable[[_T], None]) -> None:
        """Have something slow done by the other thread, and its outcome taken in by the owner's.

        Work tells of what may go wrong by its outcome (`failure_of`): what it raises is logged, and
        nobody hears of it.
        """
        outcomes: list[_T] = []

        def take() -> None:
            self.in_flight -= 1
            for outcome in outcomes:
                taken(outcome)

        def carry_out() -> None:
            failure_of("work of a keeper", lambda: outcomes.append(work()))
            self.post(take)

        self.in_flight += 1
        self._work.put(carry_out)

    def take_in(self) -> None:
        """Take in every outcome there is, on the owner's thread; one that fails is logged."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        while not self._results.empty():
            failure_of("taking in a result", self._results.get())
