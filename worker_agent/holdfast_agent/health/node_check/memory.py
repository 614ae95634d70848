"""Bandwidth of main memory: large copies by all CPUs that the process may use.

Needs no torch. Belongs here: copies in main memory. Does not belong here: shared memory
(`storage`).
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast_agent.config.cpu_limit import usable_cpus
from holdfast_agent.health.node_check.measured import FigureReporter, NotMeasurableError
from holdfast_wire.resources import Resource

MOST_BYTES = 256 << 20
"""Memory that the copies take, both sides together: more than the last cache of most CPUs."""
_LEAST_BYTES = 32 << 20
"""Less would measure the cache."""
_MOST_THREADS = 16
"""They saturate the memory of one node; more only cost time to start."""
_REPEATS = 3
_REPEAT_SECONDS = 0.15
"""Longer than the period of a CPU quota (0.1 s): a throttled node cannot look fast for once."""


def measure(report: FigureReporter) -> None:
    """Report the bandwidth in GB/s, bytes read and written; the best of three."""
    with report.measures(Resource.MEMORY_BANDWIDTH):
        size = min(MOST_BYTES, _available() // 4)
        if size < _LEAST_BYTES:
            raise NotMeasurableError(f"only {_available() >> 20} MiB of memory are available")
        report.figure(_best(size) / 1e9)


def _best(size: int) -> float:
    threads = min(usable_cpus(), _MOST_THREADS)
    part = size // 2 // threads // mmap.PAGESIZE * mmap.PAGESIZE
    blocks = [mmap.mmap(-1, 2 * part) for _ in range(threads)]
    try:
        for block in blocks:
            block.write(b"\1" * len(block))
        return max(_bytes_per_second(blocks, part) for _ in range(_REPEATS))
    finally:
        for block in blocks:
            block.close()


def _bytes_per_second(blocks: Sequence[mmap.mmap], part: int) -> float:
    copied = [0] * len(blocks)
    begin = time.monotonic()

    def copy(at: int) -> None:
        # An array over the block must be gone before the block is closed: hence this function.
        whole = (ctypes.c_char * (2 * part)).from_buffer(blocks[at])
        address = ctypes.addressof(whole)
        while time.monotonic() < begin + _REPEAT_SECONDS:
            ctypes.memmove(address, address + part, part)
            copied[at] += 2 * part
        del whole

    workers = [threading.Thread(target=copy, args=(at,)) for at in range(len(blocks))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(copied) / (time.monotonic() - begin)


def _available() -> int:
    """Return the bytes of memory that a process can take without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return MOST_BYTES * 4
