"""Plan of the measurements: their number and their order. Pure.

Two rounds: a machine that slows down does so for all. Those that no promise is about have one, with
as many repeats as the others have in two. The first save of each process is apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.flash import results as r

ROUNDS: Final = 2
SMALLEST_MIB: Final = 192
"""One layer, and a table of 1,000 words."""


@dataclass(frozen=True, slots=True)
class Row:
    """One system in one case."""

    case: str
    system: str
    rounds: int = 2
    seconds: float = 30.0
    """What one round takes at 2 GiB on an idle machine of two cores, start included."""
    share: float = 1.0
    """Of the size that was asked for, so that a whole run takes no longer than 20 minutes."""

    def repeats(self, each: int) -> int:
        """Return how many saves count in a round, `each` in each of two."""
        return each * ROUNDS // self.rounds


ROWS: Final = (
    Row(r.ONE, r.FLASH_1, seconds=20),
    Row(r.ONE, r.FLASH_2, seconds=20),
    Row(r.ONE, r.BLOCK, seconds=15),
    Row(r.ONE, r.ASYNC_THREAD, seconds=40),
    Row(r.ONE, r.DLROVER, seconds=30),
    Row(r.ONE, r.ASYNC, seconds=42),
    Row(r.ONE, r.ASYNC_PROCESS, rounds=1, seconds=50),
    Row(r.ONE, r.ASYNC_AS_PROCESS, rounds=1, seconds=50),
    Row(r.ONE, r.DCP_SAVE, rounds=1),
    Row(r.ONE, r.TORCH_SAVE, rounds=1),
    Row(r.TWO, r.FLASH_1, seconds=17, share=0.5),
    Row(r.TWO, r.BLOCK, seconds=15, share=0.5),
    Row(r.TWO, r.ASYNC_THREAD, seconds=24, share=0.5),
    Row(r.TWO, r.ASYNC_PROCESS, seconds=27, share=0.5),
    Row(r.TWO, r.DLROVER_FSDP, seconds=25, share=0.5),
    Row(r.TWO, r.ASYNC, rounds=1, seconds=27, share=0.5),
    Row(r.SMALL, r.FLASH_1, seconds=8),
    Row(r.SMALL, r.DLROVER, seconds=25),
    Row(r.STALL, r.OVERLAPPED, seconds=35),
    Row(r.STALL, r.DLROVER_DISK, seconds=45),
    Row(r.STALL, r.ASYNC_THREAD, rounds=1, seconds=40),
    Row(r.FIRST, r.FLASH_1, seconds=20, share=0.5),
    Row(r.RESTORE, r.FLASH_1, seconds=12, share=0.5),
    Row(r.RESTORE, r.DCP_LOAD, seconds=16, share=0.5),
)

ON_GPU: Final = (
    Row(r.ONE, r.FLASH_1),
    Row(r.ONE, r.ASYNC_THREAD),
    Row(r.ONE, r.DLROVER),
    Row(r.ONE, r.ASYNC),
    Row(r.ONE, r.TORCH_SAVE, rounds=1),
    Row(r.SMALL, r.FLASH_1),
    Row(r.SMALL, r.DLROVER),
    Row(r.STALL, r.OVERLAPPED),
    Row(r.STALL, r.ASYNC_STAGED),
    Row(r.STALL, r.DLROVER_DISK, rounds=1),
    Row(r.FIRST, r.FLASH_1, share=0.5),
    Row(r.RESTORE, r.FLASH_1),
    Row(r.RESTORE, r.DCP_LOAD),
)
"""One GPU, so one rank; nothing that the trainer's CPU threads would do."""


def chosen(only: str, device: str = "cpu") -> list[Row]:
    """Return the rows whose case or system contains the text; all for none."""
    rows = ON_GPU if device == "cuda" else ROWS
    return [row for row in rows if only in f"{row.case}: {row.system}"]


def ordered(rows: list[Row]) -> list[Row]:
    """Return the runs in their order: a round of all, then those with a second one."""
    return [row for turn in range(ROUNDS) for row in rows if turn < row.rounds]


def estimate_s(rows: list[Row], mib: int, repeats: int) -> float:
    """Return how long the rows take on an idle machine; half of each is its start."""
    return sum(
        row.seconds * row.rounds * (0.4 + 0.6 * (mib / 2048) * (row.repeats(repeats) / 5))
        for row in rows
    )
