"""Says once, where no agent keeps the checkpoints, what that leaves out."""

from __future__ import annotations

import logging
from typing import Final

log: Final = logging.getLogger("holdfast")

_TEXT: Final = (
    "no Holdfast agent keeps these checkpoints: a child of each process writes them to %s. Missing "
    "without one: memory that outlives a process (a crash goes back to the newest step on "
    "storage), saves before a machine is lost or taken away, and intervals that follow from what "
    "they cost. Start the script with `holdfast-run`, or a job with `holdfast run`"
)
_said: list[int] = []
"""Of this process: more than one entry is never made."""


def say_what_is_missing(rank: int, root: str) -> None:
    """Say it, the first time; only rank 0 does, for all would say the same."""
    if rank == 0 and not _said:
        _said.append(rank)
        log.warning(_TEXT, root)
