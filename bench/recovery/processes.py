"""Looks at processes and ends them; nothing here knows what they are for."""

import os
import select
import signal
import threading
import time
from collections.abc import Iterable

import psutil


def alive(pid: int) -> bool:
    """Return True if ``pid`` exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def tree(root: int) -> list[int]:
    """Return ``root`` and its descendants, parents first."""
    return [root, *(one.pid for one in psutil.Process(root).children(recursive=True))]


def ancestors(pid: int) -> list[int]:
    """Return ``pid``, its parent and so on; none of a process that is gone."""
    try:
        return [pid, *(one.pid for one in psutil.Process(pid).parents())]
    except psutil.NoSuchProcess:
        return []


def send(pids: Iterable[int], number: signal.Signals) -> float:
    """Send ``number`` to all of ``pids``; return the monotonic time just before the first."""
    begun = time.monotonic()
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    return begun


class DeathWatch:
    """Notes when one process dies, to the millisecond, from a thread of its own."""

    def __init__(self, pid: int) -> None:
        self.died_at: float | None = None
        self._fd = os.pidfd_open(pid)
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        poller.poll()
        self.died_at = time.monotonic()
        os.close(self._fd)
