"""The server's worker threads: their results are callbacks on the owner's poll loop.

Belongs here: the order of the work, the count of jobs under way, the wake-up of the owner; the wait
of slow work for the copies that other ranks make of the same step (`RankCopies`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from holdfast import loop_errors
from holdfast.flash.memory.slots import Version

log: Final = logging.getLogger(__name__)

_T = TypeVar("_T")


def outcome_of(
    what: str, work: Callable[[], _T], *expected: type[Exception]
) -> tuple[_T | None, str]:
    """Run work at the top of a thread; return its result, or None and the reason of its failure.

    expected: errors with a text for users; any other is logged with its trace, and counted.
    """
    try:
        return work(), ""
    except expected as error:
        return None, str(error)
    except Exception as error:  # the top of a thread
        log.exception("%s failed (fault %d)", what, loop_errors.count(__name__))
        return None, f"{type(error).__name__}: {error}"


def failure_of(what: str, work: Callable[[], None], *expected: type[Exception]) -> str:
    """Run work at the top of a thread; return the reason of its failure, empty if none."""
    return outcome_of(what, work, *expected)[1]


class WorkerThread:
    """One thread that does one job after another."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="holdfast-keeper", daemon=True)
        self._lock, self._ended = threading.Lock(), False
        """Guards the descriptors; `_ended`: they are closed."""
        self.in_flight = 0
        """Number of jobs whose result was not taken in yet."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def end(self) -> None:
        """Wait until all jobs are done, and end the thread; their results are dropped."""
        self._work.put(None)
        self._thread.join()
        with self._lock:
            self._ended = True
            os.close(self._wake_read)
            os.close(self._wake_write)

    def fileno(self) -> int:
        """Return the descriptor that is readable once there is a result."""
        return self._wake_read

    def wake(self) -> None:
        """Wake the owner; from any thread, and harmless after the end."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._ended:  # by now the number may be another file's
                os.write(self._wake_write, b"x")

    def post(self, result: Callable[[], None]) -> None:
        """Run a callback on the owner's thread; from any thread."""
        self._results.put(result)
        self.wake()

    def hand_out(
        self,
        what: str,
        work: Callable[[], _T],
        taken: Callable[[_T | None, str], None],
        *expected: type[Exception],
    ) -> None:
        """Run slow work on the worker thread; `taken` gets its outcome on the owner's thread.

        The outcome is that of `outcome_of`: a result and an empty text, or None and a reason.
        """

        def take(outcome: tuple[_T | None, str]) -> None:
            self.in_flight -= 1
            taken(*outcome)

        def carry_out() -> None:
            self.post(partial(take, outcome_of(what, work, *expected)))

        self.in_flight += 1
        self._work.put(carry_out)

    def take_in(self) -> None:
        """Handle all results on the owner's thread; an error of one is logged."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        while not self._results.empty():
            failure_of("taking in a result", self._results.get())


GRACE_SECONDS: Final = 0.05
"""Longest wait for the copies of other ranks: ranks end a step within milliseconds, and copy 500 MB
meanwhile. A rank that skips the save never comes."""


class RankCopies:
    """The newest step that a rank of this node has copied, and who has."""

    def __init__(self, grace_seconds: float = GRACE_SECONDS) -> None:
        self._grace = grace_seconds
        self._changed = threading.Condition()
        self._version: Version | None = None
        self._ranks: set[int] = set()
        self._is_over = False

    def copied(self, version: Version, rank: int, ranks: Iterable[int]) -> None:
        """Note that a rank has copied a step; ranks: all that are connected."""
        with self._changed:
            if version != self._version:
                self._version, self._ranks = version, set()
            self._ranks.add(rank)
            self._is_over = self._ranks.issuperset(ranks)
            self._changed.notify_all()

    def give_up(self) -> None:
        """End all waits: a rank is gone."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait(self, version: Version) -> None:
        """Return once all ranks have copied a step, once the grace is over, or for an older step.

        The grace counts once for each step.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or self._version != version, timeout=self._grace
            )
            if self._version == version:
                self._is_over = True
