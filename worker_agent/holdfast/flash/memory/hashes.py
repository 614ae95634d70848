"""Hashes of a checkpoint's items, xxh3-64 at memory speed; on threads while no rank trains."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Final, TypeVar

MOST_THREADS: Final = 4
"""Threads of one verification, if there are as many cores. One thread reads and hashes 10 GB/s
from the page cache."""
_THREAD_BYTES: Final = 2**24
"""Bytes that make another thread worth its start: about 1 ms of work."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def require() -> None:
    """Raise ImportError, with the remedy, where no item can be hashed: no save would end well."""
    try:
        import_module("xxhash")
    except ImportError as error:
        raise ImportError(
            "xxhash is not installed, with which checkpoints are hashed: "
            "pip install 'holdfast[train]', or xxhash>=3.4 beside a torch of your own"
        ) from error


def hash64(data: bytes | memoryview) -> int:
    """Return xxh3-64 of some bytes; other threads run meanwhile."""
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(data)


def hash_items(
    image: memoryview, spans: Sequence[tuple[int, int]], *, training: bool = True
) -> tuple[int, ...]:
    """Return the xxh3-64 of each item of one rank's image.

    spans: (begin, length) of each item, bytes. training: False: no rank trains meanwhile, so
    several threads may hash.
    """

    def hashes(run: Sequence[tuple[int, int]]) -> list[int]:
        return [hash64(image[begin : begin + length]) for begin, length in run]

    if training:
        return tuple(hashes(spans))
    return tuple(one for run in on_threads(spans, lambda span: span[1], hashes) for one in run)


def on_threads(
    items: Sequence[_Item], size: Callable[[_Item], int], work: Callable[[Sequence[_Item]], _Result]
) -> list[_Result]:
    """Work on neighbouring items in runs of about as many bytes, each on a thread of its own.

    size: gives an item's bytes. Returns the result of each run, in order; one run if the items are
    small. Raises the error of the first run that fails.
    """
    found = _runs(items, size, min(MOST_THREADS, len(os.sched_getaffinity(0))))
    if len(found) == 1:
        return [work(found[0])]
    with ThreadPoolExecutor(len(found), "holdfast-hash") as pool:
        return list(pool.map(work, found))


def _runs(items: Sequence[_Item], size: Callable[[_Item], int], most: int) -> list[Sequence[_Item]]:
    total = sum(map(size, items))
    count = max(1, min(most, total // _THREAD_BYTES))
    runs: list[list[_Item]] = [[] for _ in range(count)]
    before = 0
    for item in items:
        runs[min(count - 1, before * count // max(1, total))].append(item)
        before += size(item)
    return [run for run in runs if run] or [items]
