"""Copies of one step that the ranks of a node make at once; slow work on the step waits for them.

Training waits for the copies, and nothing waits for hashes and files. So these must not take cores
and memory bandwidth from a rank that still copies. Belongs here: that wait. Does not belong here:
the work (`service`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from holdfast.flash.memory.slots import Version

GRACE_SECONDS: Final = 0.05
"""Longest wait for the copies of other ranks: ranks end a step within milliseconds, and copy 500 MB
meanwhile. A rank that skips the save never comes."""


class RankCopies:
    """The newest step that a rank of this node has copied, and who has."""

    def __init__(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Begin with no step."""
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
