"""Whether long-lived processes of a job gather open descriptors.

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
    """How one process began and ended."""

    what: str
    pid: int
    counts: int
    first: int
    """Open descriptors in the quiet moments of its first third."""
    last: int
    """And of its last third."""

    @property
    def grew(self) -> bool:
        """Whether it gathers them."""
        return self.counts >= LEAST and self.last - self.first > SLACK

    def text(self) -> str:
        """One line for people."""
        return f"{self.what} {self.pid}: {self.first} to {self.last} in {self.counts} counts"


class Descriptors:
    """Counts of one runner and of each master that it has had."""

    def __init__(self, runner: int) -> None:
        """`runner`: pid of `holdfast run`."""
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
        """How each process did, longest first."""
        found = [kept(what, pid, counts) for (what, pid), counts in self._counts.items()]
        return sorted(found, key=lambda one: (-one.counts, one.pid))


def kept(what: str, pid: int, counts: Sequence[int]) -> Kept:
    """Judge a process's counts, in the order of time."""
    third = max(1, len(counts) // 3)
    return Kept(what, pid, len(counts), _quiet(counts[:third]), _quiet(counts[-third:]))


def _quiet(counts: Sequence[int]) -> int:
    """A low count, but not the lowest: that is one's own beginning."""
    return sorted(counts)[len(counts) // 4]
