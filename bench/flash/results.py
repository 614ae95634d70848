"""Results of the flash benchmark, and the parser of its results file. Values only."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench import record

ONE: Final = "one rank"
TWO: Final = "two ranks"
SMALL: Final = "small tensors"
STALL: Final = "whole stall"
FIRST: Final = "first save"
RESTORE: Final = "restore"
CRASH: Final = "crash"

FLASH_1: Final = "flash, 1 thread"
FLASH_2: Final = "flash, 2 threads"
OVERLAPPED: Final = "flash, overlapped"
TORCH_SAVE: Final = "torch.save"
DCP_SAVE: Final = "dcp.save"
ASYNC: Final = "dcp.async_save"
ASYNC_AS_PROCESS: Final = "dcp.async_save, process"
ASYNC_THREAD: Final = "dcp.async_save, stager reused, thread"
ASYNC_STAGED: Final = "dcp.async_save, staged beside"
ASYNC_PROCESS: Final = "dcp.async_save, stager reused, process"
DLROVER: Final = "DLRover DDP, memory"
DLROVER_DISK: Final = "DLRover DDP, disk"
DLROVER_FSDP: Final = "DLRover FSDP, memory"
DCP_LOAD: Final = "dcp.load"
BLOCK: Final = "one block, all cores"
"""No save, but the least that moving as many bytes takes on the machine."""

OURS: Final = frozenset({FLASH_1, FLASH_2, OVERLAPPED})
PEERS: Final = frozenset({DLROVER, DLROVER_DISK, DLROVER_FSDP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One system in one case, in one process (or one for each rank)."""

    case: str
    system: str
    ranks: int = 1
    bytes: int = 0
    """Of the state, on all ranks together."""
    tensors: int = 0
    """On one rank."""
    seconds: list[float] = field(default_factory=list)
    """What the trainer waited, each time, on the slowest rank; without the first of the process."""
    copies: list[float] = field(default_factory=list)
    """The plain copy of the same bytes just before."""
    cpu: list[float] = field(default_factory=list)
    """× in CPU time of the first rank's process."""
    first: list[float] = field(default_factory=list)
    """× of a process's, or of an arena's, first time."""
    figures: dict[str, float] = field(default_factory=dict)
    load: float = 0.0
    """The machine's load average over a minute, before."""
    failed: str = ""
    """Why there are no figures."""


def from_line(line: str) -> Result:
    """Read what `record.to_line` wrote."""
    raw: dict[str, Any] = json.loads(line)
    return Result(**raw)


def read(lines: Iterable[str]) -> tuple[dict[str, Any], list[Result]]:
    """Read a results file: what is known of the run, then the results."""
    return record.read(lines, from_line)


@dataclass(frozen=True, slots=True)
class Figures:
    """All rounds of one system in one case together."""

    x: tuple[float, ...]
    """Seconds over those of the copy just before."""
    seconds: tuple[float, ...]
    copies: tuple[float, ...]
    cpu: tuple[float, ...]
    first: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of ×."""
        return statistics.median(self.x)


def figures(results: Sequence[Result], case: str, system: str) -> Figures | None:
    """Return what all rounds of a system in a case have found; None where nothing was."""
    found = [one for one in results if (one.case, one.system) == (case, system) and one.seconds]
    if not found:
        return None
    pairs = [pair for one in found for pair in zip(one.seconds, one.copies, strict=True)]
    return Figures(
        x=tuple(taken / copy for taken, copy in pairs),
        seconds=tuple(taken for taken, _ in pairs),
        copies=tuple(copy for _, copy in pairs),
        cpu=tuple(value for one in found for value in one.cpu),
        first=tuple(value for one in found for value in one.first),
    )


def times(theirs: Figures, ours: Figures) -> tuple[float, float, float]:
    """Return by how much theirs is more, of ×: of the medians, the least, the greatest."""
    return (
        theirs.median / ours.median,
        min(theirs.x) / max(ours.x),
        max(theirs.x) / min(ours.x),
    )
