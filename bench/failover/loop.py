"""The cheap training script of the failover runs: short steps, no torch, whole checkpoints.

Each process writes a line when it starts, so that every start is counted, also one that takes no
step.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import holdfast


def main() -> None:
    """Take steps for ever; save at SAVE_AND_STOP, and every step besides."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    args = parser.parse_args()
    job = holdfast.init()
    note_start(args.folder, job.round, job.rank)
    saved = args.folder / "step"
    step = int(saved.read_text()) if saved.exists() else 0
    while True:
        time.sleep(args.step_seconds)
        step += 1
        action = job.step(step, samples=1)
        if job.rank == 0:
            temporary = saved.with_name(f".step-{os.getpid()}")
            temporary.write_text(str(step))
            temporary.replace(saved)
        if action is holdfast.SAVE_AND_STOP:
            return


def note_start(folder: Path, round_number: int, rank: int) -> None:
    """Append `round rank pid`, in one write."""
    file = os.open(folder / "starts", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{round_number} {rank} {os.getpid()}\n".encode())
    finally:
        os.close(file)


if __name__ == "__main__":
    main()
