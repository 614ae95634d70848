"""Tools of a measured rank: time calls together with the other ranks, and log them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist

from bench.universal.results import Timed
from holdfast.flash.memory.mmap import Mapping as Memory
from holdfast.flash.trainer.memcpy import CopyRange, CopyRanges

Way = Mapping[str, Callable[[], Any]]
"""Calls of one system in order, by the name of what is over when the call returns."""
_ALIGNED: Final = 64
_FUNCTIONS: Final = (
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all"),
    *("all_to_all_single", "barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list"),
    *("gather", "gather_object", "irecv", "isend", "monitored_barrier", "recv", "reduce"),
    *("reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send"),
)


def options() -> SimpleNamespace:
    """Return a script's options, which are its command line as JSON: see `plan.run`."""
    found = json.loads(sys.argv[1])
    paths = {name: Path(found[name]) for name in ("lines", "folder")}
    return SimpleNamespace(**{**found, **paths})


def timed(calls: Sequence[Callable[[], Any]]) -> list[tuple[float, int]]:
    """Return seconds and collectives from the first call's start to each call's end.

    All ranks begin together; of both figures that of the rank with most.
    """
    dist.barrier()
    found = []
    with counted() as count:
        begin = time.perf_counter()
        for call in calls:
            call()
            found.append((time.perf_counter() - begin, float(count())))
    most = torch.tensor(found, dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return [(float(seconds), int(collectives)) for seconds, collectives in most]


@contextlib.contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """Count collectives and messages of torch.distributed; yield a function that tells how many.

    Two counters, of which the greater holds: calls of the module's functions, and the sequence
    numbers of all groups, which see calls by other ways too.
    """
    calls, numbers = 0, _sequence()
    before = {name: getattr(dist, name) for name in _FUNCTIONS if hasattr(dist, name)}

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            nonlocal calls
            calls += 1
            return function(*args, **keywords)

        return call

    for name, function in before.items():
        setattr(dist, name, wrapped(function))
    try:
        yield lambda: max(calls, _sequence() - numbers)
    finally:
        for name, function in before.items():
            setattr(dist, name, function)


def _sequence() -> int:
    groups: list[Any] = list(dist.distributed_c10d._world.pg_map)  # noqa: SLF001 - the only list
    return sum(int(group._get_sequence_number_for_group()) for group in groups)  # noqa: SLF001


class Copy:
    """A streaming copy of tensors into memory of an arena's kind, all of it faulted in."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Make the memory and copy once."""
        self._kept = [one.detach() for one in tensors if one.numel()]
        self.bytes = sum(one.nbytes for one in self._kept)
        sizes = [-(-one.nbytes // _ALIGNED) * _ALIGNED for one in self._kept]
        fd = os.memfd_create("copy")
        os.ftruncate(fd, max(sum(sizes), _ALIGNED))
        self._memory = Memory(fd)
        os.close(fd)
        self._memory.enlarge(threads=1)
        self._memory.fault_in(write=True, threads=1)
        there, back, at = [], [], self._memory.address
        for one, size in zip(self._kept, sizes, strict=True):
            if not one.is_contiguous():
                raise ValueError(f"a tensor of shape {tuple(one.shape)} is not contiguous")
            there.append(CopyRange(at, one.data_ptr(), one.nbytes))
            back.append(CopyRange(one.data_ptr(), at, one.nbytes))
            at += size
        self._there, self._back = CopyRanges(there), CopyRanges(back)
        self()

    def __call__(self) -> None:
        """Copy all of them."""
        self._there.copy(1)

    def back(self) -> None:
        """Copy all of them back."""
        self._back.copy(1)


class Log:
    """Writes what was measured; rank 0 only."""

    def __init__(self, file: Path, state: str, shard: Callable[[], Sequence[torch.Tensor]]) -> None:
        """Take the file, the state's name, and what lists this rank's shard."""
        self._file, self._state, self._shard = file, state, shard

    def measure(self, act: str, turn: int, way: Way) -> None:
        """Carry out the calls of one system, and log them; not those of a turn below 0."""
        found = timed(list(way.values()))
        if turn < 0 or not way:
            return
        own = float(sum(one.nbytes for one in self._shard()))
        total = torch.tensor([own], dtype=torch.float64)
        dist.all_reduce(total)
        for system, (seconds, collectives) in zip(way, found, strict=True):
            line = Timed(
                state=self._state,
                act=act,
                system=system,
                turn=turn,
                seconds=seconds,
                mib=float(total) / 2**20,
                collectives=collectives,
                load=os.getloadavg()[0],
            )
            self._add(line)

    def _add(self, line: Timed) -> None:
        if dist.get_rank():
            return
        with self._file.open("a") as file:
            file.write(json.dumps(dataclasses.asdict(line)) + "\n")


def digest(tensors: Sequence[torch.Tensor]) -> str:
    """Return the hash of the tensors' bytes."""
    found = hashlib.blake2b(digest_size=16)
    for one in tensors:
        found.update(one.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
