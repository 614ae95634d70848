"""Tools of a measured rank: time a call together with the other ranks, and log it."""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from holdfast.flash.trainer.copier import Piece, Pieces


def parser() -> argparse.ArgumentParser:
    """Return a parser with the options of every script."""
    found = argparse.ArgumentParser()
    found.add_argument("--lines", type=Path, required=True)
    found.add_argument("--folder", type=Path, required=True)
    found.add_argument("--act", required=True)
    found.add_argument("--turns", type=int, default=3)
    found.add_argument("--width", type=int, default=1024)
    found.add_argument("--layers", type=int, default=8)
    return found


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds of a call on the slowest rank; all begin together."""
    dist.barrier()
    begin = time.perf_counter()
    call()
    mine = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return float(mine)


@contextlib.contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """Count the collectives of torch.distributed's functions; yield a function that tells how many.

    The functions of the module are wrapped: a checkpoint that calls one of them is counted.
    """
    names = [
        name
        for name in ("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce",
                     "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object",
                     "reduce_scatter", "reduce_scatter_tensor", "scatter", "send", "recv",
                     "isend", "irecv", "batch_isend_irecv", "scatter_object_list")
        if hasattr(dist, name)
    ]  # fmt: skip
    count = 0
    before = {name: getattr(dist, name) for name in names}

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            nonlocal count
            count += 1
            return function(*args, **keywords)

        return call

    for name, function in before.items():
        setattr(dist, name, wrapped(function))
    try:
        yield lambda: count
    finally:
        for name, function in before.items():
            setattr(dist, name, function)


class Copy:
    """A streaming copy of tensors into memory that is faulted in: the least that a save costs."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Make the memory and copy once."""
        self._kept = [one.detach() for one in tensors if one.numel()]
        self.bytes = sum(one.nbytes for one in self._kept)
        memory = mmap.mmap(-1, max(1, sum(-(-one.nbytes // 64) * 64 for one in self._kept)))
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        pieces, at = [], whole.data_ptr()
        for one in self._kept:
            if not one.is_contiguous():
                raise ValueError("expected contiguous tensors")
            pieces.append(Piece(at, one.data_ptr(), one.nbytes))
            at += -(-one.nbytes // 64) * 64
        self._memory, self._pieces = whole, Pieces(pieces)
        self()

    def __call__(self) -> None:
        """Copy all of them."""
        self._pieces.copy(1)


class Log:
    """Writes what was measured; rank 0 only."""

    def __init__(self, file: Path, case: str, mib: float) -> None:
        """Take the file and what all lines have alike."""
        self._file, self._case, self._mib = file, case, mib

    def add(self, what: str, system: str, turn: int, seconds: float, collectives: int = -1) -> None:
        """Add a line."""
        if dist.get_rank():
            return
        line = {
            "case": f"{self._case}: {what}",
            "system": system,
            "turn": turn,
            "seconds": seconds,
            "mib": self._mib,
            "collectives": collectives,
            "load": os.getloadavg()[0],
        }
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def all_bytes(own: int) -> float:
    """Return the MiB of all ranks together."""
    total = torch.tensor([float(own)], dtype=torch.float64)
    dist.all_reduce(total)
    return float(total) / 2**20
