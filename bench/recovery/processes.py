"""Looks at processes through /proc and ends them.

Nothing here knows what the processes are for. Reading races with processes that end, so every
reader answers "gone" (None, or nothing in a list) instead of raising.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Stat:
    """One process as its /proc/PID/stat describes it."""

    pid: int
    state: str
    """One letter: R, S, D, T (stopped), Z (dead, not reaped)."""
    parent: int
    started_at: float
    """Seconds on the monotonic clock, to a hundredth."""


def parse_stat(text: str, ticks_per_second: int) -> Stat:
    """Read the one line of /proc/PID/stat; the command in it may hold spaces and brackets."""
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    return Stat(
        pid=int(pid),
        state=fields[0],
        parent=int(fields[1]),
        started_at=int(fields[19]) / ticks_per_second,
    )


def stat(pid: int) -> Stat | None:
    """Return the state of process ``pid``; None once the process is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return parse_stat(text, os.sysconf("SC_CLK_TCK"))


def alive(pid: int) -> bool:
    """Tell whether ``pid`` exists and is not a zombie."""
    seen = stat(pid)
    return seen is not None and seen.state != "Z"


def everybody() -> list[Stat]:
    """Return all processes of this PID namespace, by pid."""
    pids = sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [seen for pid in pids if (seen := stat(pid)) is not None]


def tree(root: int) -> list[int]:
    """Return ``root`` and its living descendants, parents first."""
    children: dict[int, list[int]] = {}
    for seen in everybody():
        if seen.state != "Z":
            children.setdefault(seen.parent, []).append(seen.pid)
    found = [root]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def ancestors(pid: int) -> list[int]:
    """Return ``pid``, its parent and so on, up to the namespace's first process."""
    found: list[int] = []
    while pid > 0 and (seen := stat(pid)) is not None:
        found.append(pid)
        pid = seen.parent
    return found


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
