"""Loss of one training against tokens and bytes, as lines of a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist

FIELDS = ("way", "step", "tokens", "bytes", "loss")
"""`tokens`: of all replicas; `bytes`: that a rank has sent to other replicas, by the formulas."""


class Curve:
    """The losses of the first rank's replica; other ranks write nothing."""

    def __init__(self, file: Path | None, way: str, tokens: int) -> None:
        """Take the file (None: none), the way's name, and the tokens of a step of all replicas."""
        self._way, self._tokens = way, tokens
        self._bytes = 0
        self._file: IO[str] | None = None
        if file is not None and dist.get_rank() == 0:
            is_new = not file.exists()
            self._file = file.open("a", newline="")
            if is_new:
                csv.writer(self._file).writerow(FIELDS)

    def add(self, step: int, loss: torch.Tensor, gradients: int, rounds: int = 0) -> None:
        """Write a step down.

        Args:
            step: Steps so far.
            loss: Of this step, nats a byte.
            gradients: Bytes that this step has sent.
            rounds: Bytes that all rounds so far have sent, where they are counted.
        """
        self._bytes += gradients
        if self._file is not None:
            row = (self._way, step, step * self._tokens, self._bytes + rounds, f"{loss:.4f}")
            csv.writer(self._file).writerow(row)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
