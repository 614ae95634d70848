"""Counts the open descriptors of a job's long-lived processes over time.

Belongs here: the counts while it runs and what of them is growth. Does not belong here: when a job
runs (`soak`).
A process's count goes up and down with its connections, so the quiet moments of its beginning are
held against those of its end.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import psutil

LEAST = 30
"""Counts of a process that lived too short for a verdict are left alone."""
SLACK = 16
"""More than this between quiet moments is growth: four agents that are away or back, with two
sockets each in the runner's proxies, and as many again."""
_MASTER = "holdfast_master.main"


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """The open descriptors of one process in the first and the last third of its counts."""

    what: str
    pid: int
    counts: int
    first: int
    """Open descriptors in the quiet moments of its first third."""
    last: int
    """And of its last third."""

    @property
    def grew(self) -> bool:
        """Return True when the process gathers descriptors."""
        return self.counts >= LEAST and self.last - self.first > SLACK

    def text(self) -> str:
        """Return one line for people."""
        return f"{self.what} {self.pid}: {self.first} to {self.last} in {self.counts} counts"


class Descriptors:
    """Counts of one runner and of each master that it has had."""

    def __init__(self, runner: int) -> None:
        """Begin without counts; `runner` is the pid of `holdfast run`."""
        self._runner = runner
        self._counts: dict[tuple[str, int], list[int]] = collections.defaultdict(list)

    def count(self) -> None:
        """Count once; a process that is just ending is passed over."""
        try:
            runner = psutil.Process(self._runner)
            self._add("runner", runner)
            for child in runner.children():
                if _MASTER in child.cmdline():
                    self._add("master", child)
        except psutil.Error:
            return

    def _add(self, what: str, process: psutil.Process) -> None:
        self._counts[what, process.pid].append(process.num_fds())

    def kept(self) -> list[Kept]:
        """Judge each process, the one with the most counts first."""
        found = [kept(what, pid, counts) for (what, pid), counts in self._counts.items()]
        return sorted(found, key=lambda one: (-one.counts, one.pid))


def kept(what: str, pid: int, counts: Sequence[int]) -> Kept:
    """Judge a process's counts, in the order of time."""
    third = max(1, len(counts) // 3)
    return Kept(what, pid, len(counts), _quiet(counts[:third]), _quiet(counts[-third:]))


def _quiet(counts: Sequence[int]) -> int:
    """Return a low count, but not the lowest: a process has that only while it starts."""
    return sorted(counts)[len(counts) // 4]
