"""Detects dying workers before they are gone, by their marks in the shared page.

A mark is only a reason to look; the process's entry in /proc decides. One thread per local rank
sleeps in the kernel. Polling as often would cost more than everything else that an idle agent does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable

from holdfast.page import Page
from holdfast.robust_mark import OWNER_DIED, RobustMark
from holdfast_agent.policies import exit_rules
from holdfast_agent.workers.runner import RoundRunner
from holdfast_agent.zygote.process_tree import end_of_dying

log = logging.getLogger(__name__)

WAIT_SECONDS = 5.0
"""Longest wait, s. A wait ends at once when a mark changes; this only bounds unknown cases."""
JOIN_SECONDS = 0.02
"""Seconds between two wake-ups of a thread that is to end: it may not be asleep yet."""
STOP_TRIES = 50


class Deaths:
    """Watch over the marks of all local ranks."""

    def __init__(self, page: Page, zygote_pid: Callable[[], int], runner: RoundRunner) -> None:
        """Watch `runner`'s workers, children of the present zygote, whose slots are in `page`."""
        self._page = page
        self._zygote_pid = zygote_pid
        self._runner = runner
        self._marks = tuple(RobustMark(page.fd, slot) for slot in range(page.slots))
        self._threads: list[threading.Thread] = []
        self._stopping = False

    def start(self) -> None:
        """Begin to wait; call it inside the event loop."""
        loop = asyncio.get_running_loop()
        for slot in range(len(self._marks)):
            name = f"hf-mark-{slot}"
            thread = threading.Thread(target=self._wait, args=(slot, loop), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End the threads; blocks for milliseconds, a second each at most."""
        self._stopping = True
        for mark, thread in zip(self._marks, self._threads, strict=False):
            for _ in range(STOP_TRIES):
                mark.wake()
                thread.join(JOIN_SECONDS)
                if not thread.is_alive():
                    break

    def look(self, local_rank: int) -> None:
        """Tell the runner if this rank is dying of a failure."""
        current = self._runner.current
        pid = current.pids.get(local_rank) if current is not None else None
        if current is None or pid is None or local_rank in current.exits:
            return
        code = end_of_dying(pid, self._zygote_pid())
        stale = self._page.lease_is_stale(time.monotonic_ns())
        if code is not None and exit_rules.is_early_news(
            code, current.orders, lease_is_stale=stale
        ):
            log.info("local rank %d (pid %d) is dying: %d", local_rank, pid, code)
            self._runner.on_dying(local_rank, code)

    def _wait(self, slot: int, loop: asyncio.AbstractEventLoop) -> None:
        mark = self._marks[slot]
        word = mark.word()
        while not self._stopping:
            try:
                word = mark.wait(word, WAIT_SECONDS)
            except OSError as error:
                log.info("deaths are heard of from the zygote alone: %s", error)
                return
            if word & OWNER_DIED:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self.look, slot)
