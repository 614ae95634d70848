"""The cheap training script of the failover runs: short steps in lockstep, no torch, no model.

Each process writes a line when it starts, so that every start is counted, also one that takes no
step. A step is taken by all ranks of a round or by none, as with a collective.
"""

from __future__ import annotations

import argparse
import mmap
import os
import struct
import time
from pathlib import Path

import holdfast

_POLL_SECONDS = 0.002
_WORD = struct.Struct("=q")
_RANKS = 64


def main() -> None:
    """Take steps for ever; save every one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    args = parser.parse_args()
    job = holdfast.init()
    note_start(args.folder, job.round, job.rank)
    saved = args.folder / "step"
    step = int(saved.read_text()) if saved.exists() else 0
    together = Together(args.folder / f"round-{job.round}", job.rank, job.world_size)
    while True:
        time.sleep(args.step_seconds)
        step += 1
        together.enter(step)
        if job.rank == 0:
            temporary = saved.with_name(f".step-{os.getpid()}")
            temporary.write_text(str(step))
            temporary.replace(saved)
        if job.step(step, samples=1) is holdfast.SAVE_AND_STOP:
            return


class Together:
    """A stand-in for a collective: no rank leaves a step before every rank has entered it."""

    def __init__(self, file: Path, rank: int, size: int) -> None:
        """Share a word for each rank through `file`."""
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, _RANKS * _WORD.size)
            self._words = mmap.mmap(descriptor, _RANKS * _WORD.size)
        finally:
            os.close(descriptor)
        self._rank, self._size = rank, size

    def enter(self, step: int) -> None:
        """Wait until every rank has entered `step`; wait for ever where a rank is dead."""
        _WORD.pack_into(self._words, self._rank * _WORD.size, step)
        while any(self._at(rank) < step for rank in range(self._size)):
            time.sleep(_POLL_SECONDS)

    def _at(self, rank: int) -> int:
        (step,) = _WORD.unpack_from(self._words, rank * _WORD.size)
        return int(step)


def note_start(folder: Path, round_number: int, rank: int) -> None:
    """Append `round rank pid`, in one write."""
    file = os.open(folder / "starts", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{round_number} {rank} {os.getpid()}\n".encode())
    finally:
        os.close(file)


if __name__ == "__main__":
    main()
