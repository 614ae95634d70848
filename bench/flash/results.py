"""The cases and ways of saving, a result of each, and the plan of the measurements. Values only.

Plan: two rounds, as a machine that slows down does so for all. Those that no promise is about have
one, with as many repeats as the others have in two. The first save of each process is apart.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.harness.page import Ratio

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
class SaveResult:
    """One system in one case, in one process (or one for each rank)."""

    case: str
    system: str
    ranks: int = 1
    bytes: int = 0
    """Of the state, on all ranks together."""
    tensors: int = 0
    """On one rank."""
    seconds: list[float] = field(default_factory=list)
    """The trainer's waits on the slowest rank; without the first of the process."""
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


def figures(results: Sequence[SaveResult], case: str, system: str) -> Figures | None:
    """Return the figures of all rounds of a system in a case; None where there are none."""
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


def times(theirs: Figures, ours: Figures) -> Ratio:
    """Return by how much theirs is more, of ×: of the medians, the least, the greatest."""
    return (
        theirs.median / ours.median,
        min(theirs.x) / max(ours.x),
        max(theirs.x) / min(ours.x),
    )


ROUNDS: Final = 2
SMALLEST_MIB: Final = 192
"""One layer, and a table of 1,000 words."""


@dataclass(frozen=True, slots=True)
class Saves:
    """One system in one case."""

    case: str
    system: str
    rounds: int = 2
    seconds: float = 30.0
    """Seconds of one round at 2 GiB on an idle machine of two cores, start included."""
    share: float = 1.0
    """Of the size that was asked for, so that a whole run takes no longer than 20 minutes."""

    def repeats(self, each: int) -> int:
        """Return how many saves count in a round, `each` in each of two."""
        return each * ROUNDS // self.rounds


ROWS: Final = (
    Saves(ONE, FLASH_1, seconds=20),
    Saves(ONE, FLASH_2, seconds=20),
    Saves(ONE, BLOCK, seconds=15),
    Saves(ONE, ASYNC_THREAD, seconds=40),
    Saves(ONE, DLROVER, seconds=30),
    Saves(ONE, ASYNC, seconds=42),
    Saves(ONE, ASYNC_PROCESS, rounds=1, seconds=50),
    Saves(ONE, ASYNC_AS_PROCESS, rounds=1, seconds=50),
    Saves(ONE, DCP_SAVE, rounds=1),
    Saves(ONE, TORCH_SAVE, rounds=1),
    Saves(TWO, FLASH_1, seconds=17, share=0.5),
    Saves(TWO, BLOCK, seconds=15, share=0.5),
    Saves(TWO, ASYNC_THREAD, seconds=24, share=0.5),
    Saves(TWO, ASYNC_PROCESS, seconds=27, share=0.5),
    Saves(TWO, DLROVER_FSDP, seconds=25, share=0.5),
    Saves(TWO, ASYNC, rounds=1, seconds=27, share=0.5),
    Saves(SMALL, FLASH_1, seconds=8),
    Saves(SMALL, DLROVER, seconds=25),
    Saves(STALL, OVERLAPPED, seconds=35),
    Saves(STALL, DLROVER_DISK, seconds=45),
    Saves(STALL, ASYNC_THREAD, rounds=1, seconds=40),
    Saves(FIRST, FLASH_1, seconds=20, share=0.5),
    Saves(RESTORE, FLASH_1, seconds=12, share=0.5),
    Saves(RESTORE, DCP_LOAD, seconds=16, share=0.5),
)

ON_GPU: Final = (
    Saves(ONE, FLASH_1),
    Saves(ONE, ASYNC_THREAD),
    Saves(ONE, DLROVER),
    Saves(ONE, ASYNC),
    Saves(ONE, TORCH_SAVE, rounds=1),
    Saves(SMALL, FLASH_1),
    Saves(SMALL, DLROVER),
    Saves(STALL, OVERLAPPED),
    Saves(STALL, ASYNC_STAGED),
    Saves(STALL, DLROVER_DISK, rounds=1),
    Saves(FIRST, FLASH_1, share=0.5),
    Saves(RESTORE, FLASH_1),
    Saves(RESTORE, DCP_LOAD),
)
"""One GPU, so one rank; nothing that the trainer's CPU threads would do."""


def chosen(only: str, device: str = "cpu") -> list[Saves]:
    """Return the rows whose case or system contains the text; all for none."""
    rows = ON_GPU if device == "cuda" else ROWS
    return [row for row in rows if only in f"{row.case}: {row.system}"]


def ordered(rows: list[Saves]) -> list[Saves]:
    """Return the runs in their order: a round of all, then those with a second one."""
    return [row for turn in range(ROUNDS) for row in rows if turn < row.rounds]


def estimate_s(rows: list[Saves], mib: int, repeats: int) -> float:
    """Return how long the rows take on an idle machine; half of each is its start."""
    return sum(
        row.seconds * row.rounds * (0.4 + 0.6 * (mib / 2048) * (row.repeats(repeats) / 5))
        for row in rows
    )
