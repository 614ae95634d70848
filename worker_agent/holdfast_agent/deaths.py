"""Hears of dying workers before they are gone, by the marks that they leave in the shared page.

A mark is only a reason to look; what the kernel says of the process in /proc decides. One thread
per local rank sleeps in the kernel: looking as often as that wakes would cost more than all else
that an idle agent does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time

from holdfast.mark import OWNER_DIED, Mark
from holdfast.page import Page
from holdfast_agent.decide import exits
from holdfast_agent.runner import RoundRunner
from holdfast_agent.zygote.tree import end_of_dying

log = logging.getLogger(__name__)

WAIT_SECONDS = 5.0
"""A wait ends at once when something happens; this only bounds what nobody has thought of."""
JOIN_SECONDS = 0.02
"""Between two wakes of a thread that is to end: it may just have been on its way to sleep."""
STOP_TRIES = 50


class Deaths:
    """The watch over the marks of all local ranks."""

    def __init__(self, page: Page, zygote_pid: int, runner: RoundRunner) -> None:
        """`runner`'s workers are children of that zygote, their slots are in `page`."""
        self._page = page
        self._zygote_pid = zygote_pid
        self._runner = runner
        self._marks = tuple(Mark(page.fd, slot) for slot in range(page.slots))
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
        code = end_of_dying(pid, self._zygote_pid)
        stale = self._page.lease_is_stale(time.monotonic_ns())
        if code is not None and exits.is_early_news(code, current.orders, lease_is_stale=stale):
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
