"""Notices to the user: a failure that repeats, a run without an agent, steps that its end lost."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import warnings
from typing import Final

_NUMBER: Final = re.compile(r"\d+")


class FailureLog:
    """Newest reason in a series of failures."""

    def __init__(self) -> None:
        self._known = ""

    def is_new(self, reason: str) -> bool:
        """Take a failure; tell whether its reason differs from the one before.

        Numbers do not count: the amount of free memory changes with each failure.
        """
        before, self._known = self._known, _NUMBER.sub("#", reason)
        return self._known != before

    def over(self) -> None:
        """Note a success: the next failure is logged, whatever its reason."""
        self._known = ""


log: Final = logging.getLogger("holdfast")

_LACKS: Final = (
    "no Holdfast agent keeps these checkpoints: a child of each process writes them to %s. Missing "
    "without one: memory that outlives a process (a crash goes back to the newest step on "
    "storage), saves before a machine is lost or taken away, and intervals that follow from what "
    "they cost. Start the script with `holdfast-run`, or a job with `holdfast run`"
)
_LOST: Final = (
    "training ended at step {0}, and its newest checkpoint is {1}: the steps after it are lost. "
    "End a training by close({0}), which saves its last step"
)
_said: list[str] = []
"""Directory of the notice; it never has more than one entry."""


def say_what_is_missing(root: str) -> None:
    """Print the notice, the first time; only rank 0 calls it, as all ranks would say the same."""
    if not _said:
        _said.append(root)
        log.warning(_LACKS, root)


class UnsavedEnd:
    """Newest counted step, compared with the newest saved one.

    It holds no tensors, because it outlives a checkpointer that was not closed.
    """

    def __init__(self) -> None:
        self.counted = 0
        """Newest step that the script reported; 0: none yet."""
        self.stored = 0
        """Newest step that was saved for storage, or loaded from there; 0: none."""

    def watch(self) -> None:
        """Warn at the end of the process, unless `forget` comes before."""
        _OPEN.add(self)

    def forget(self) -> None:
        """Do not warn: the script has closed its checkpointer."""
        _OPEN.discard(self)

    def warning(self) -> str:
        """Return the warning of lost steps, with the remedy; empty: none is lost."""
        if self.counted <= self.stored:
            return ""
        return _LOST.format(self.counted, f"of step {self.stored}" if self.stored else "none")


_OPEN: Final[set[UnsavedEnd]] = set()


def _at_exit() -> None:
    if getattr(sys, "last_value", None) is not None:
        return  # an exception ended the script: its traceback matters
    for one in list(_OPEN):
        if text := one.warning():
            warnings.warn(text, RuntimeWarning, stacklevel=1)


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_OPEN.clear)  # a child has not trained its parent's steps
