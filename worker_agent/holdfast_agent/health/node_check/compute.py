"""Matrix products and memory bandwidth, on the CPUs and on each CUDA device.

One device after another: eight at once would measure the power supply. Times are those of CUDA
events. Where torch has no CUDA, nothing is reported, as a node without a device lacks none.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from holdfast_agent.config.cgroups import usable_cpus
from holdfast_agent.health.node_check.measured import (
    DeviceFound,
    FigureReporter,
    NotMeasurableError,
)
from holdfast_wire.resources import Resource

CPU_SIZE = 1024
"""Rows and columns; three matrices in float32 take 12 MiB."""
_CPU_SECONDS = 0.25
"""Longer than the period of a CPU quota (0.1 s): a throttled node cannot look fast for once."""


def measure_cpu(report: FigureReporter) -> None:
    """Report TFLOP/s in float32; the best of three."""
    with report.measures(Resource.CPU_MATMUL, "cpu"):
        import torch

        # torch counts the machine's CPUs, not those of a container.
        torch.set_num_threads(usable_cpus())
        left, right = torch.randn(CPU_SIZE, CPU_SIZE), torch.randn(CPU_SIZE, CPU_SIZE)
        out = torch.mm(left, right)
        report.figure(max(_per_second(left, right, out) for _ in range(_REPEATS)) / 1e12)


def _per_second(left: object, right: object, out: object) -> float:
    import torch

    count, begin = 0, time.monotonic()
    while (passed := time.monotonic() - begin) < _CPU_SECONDS or not count:
        torch.mm(left, right, out=out)  # type: ignore[call-overload] # tensors, known to the caller
        count += 1
    return 2.0 * CPU_SIZE**3 * count / passed


MOST_BYTES = 256 << 20
"""Memory that the copies take, both sides together: more than the last cache of most CPUs."""
_LEAST_BYTES = 32 << 20
"""Less would measure the cache."""
_MOST_THREADS = 16
"""They saturate the memory of one node; more only cost time to start."""
_MEMORY_SECONDS = 0.15
"""Longer than the period of a CPU quota (0.1 s): a throttled node cannot look fast for once."""


def measure_memory(report: FigureReporter) -> None:
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
    begin = time.monotonic()

    def copied(block: mmap.mmap) -> int:
        # An array over the block must be gone before the block is closed: hence this function.
        whole, count = (ctypes.c_char * (2 * part)).from_buffer(block), 0
        address = ctypes.addressof(whole)
        while time.monotonic() < begin + _MEMORY_SECONDS:
            ctypes.memmove(address, address + part, part)
            count += 2 * part
        return count

    with ThreadPoolExecutor(len(blocks)) as threads:
        count = sum(threads.map(copied, blocks))
    return count / (time.monotonic() - begin)


def _available() -> int:
    """Return the bytes of memory that a process can take without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return MOST_BYTES * 4


SIZE = 8192
"""Rows and columns; three matrices in bfloat16 take 384 MiB."""
_COPY_BYTES = 1 << 30
"""Of a copy in device memory: far more than any cache."""
_HOST_BYTES = 256 << 20
"""Of a copy between host and device, pinned."""
_REPEATS = 3
_WARM_SECONDS = 0.1
"""Until the clocks are up."""
_REPEAT_SECONDS = 0.1


def measure_devices(report: FigureReporter) -> None:
    """Report the figures of each device; its subject is `cuda:N`."""
    import torch

    if not torch.cuda.is_available():
        return
    for at in range(torch.cuda.device_count()):
        report.send(DeviceFound(torch.cuda.get_device_name(at)))
        for resource, work in _WORK.items():
            with report.measures(resource, f"cuda:{at}"):
                report.figure(work(torch.device("cuda", at)))
        torch.cuda.empty_cache()


def _free(device: Any) -> float:
    """Return the percentage of memory that no process has, besides this one's context."""
    import torch

    free, whole = torch.cuda.mem_get_info(device)
    return 100.0 * free / whole


def _matmul(device: Any) -> float:
    import torch

    _need(device, 3 * 2 * SIZE**2)
    left = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    right = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(left)
    return 2.0 * SIZE**3 * _rate(device, lambda: torch.mm(left, right, out=out)) / 1e12


def _copies(device: Any) -> float:
    import torch

    _need(device, 2 * _COPY_BYTES)
    source = torch.empty(_COPY_BYTES, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2.0 * _COPY_BYTES * _rate(device, lambda: target.copy_(source)) / 1e9


def _host_copies(device: Any, *, to_device: bool) -> float:
    import torch

    _need(device, _HOST_BYTES)
    host = torch.empty(_HOST_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(_HOST_BYTES, device=device, dtype=torch.uint8)
    source, target = (host, there) if to_device else (there, host)
    rate = _rate(device, lambda: target.copy_(source, non_blocking=True))
    return _HOST_BYTES * rate / 1e9


def _need(device: Any, size: int) -> None:
    import torch

    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    if free < size:
        needed = f"{size >> 20} MiB of device memory"
        raise NotMeasurableError(f"it needs {needed}, and {free >> 20} are free")


def _rate(device: Any, work: Callable[[], object]) -> float:
    """Return calls per second on the device; the best of three."""
    count = _calls(device, work, _WARM_SECONDS)
    return max(count / _timed(device, work, count) for _ in range(_REPEATS))


def _calls(device: Any, work: Callable[[], object], seconds: float) -> int:
    """Warm up for about `seconds`; return how many calls take `_REPEAT_SECONDS`."""
    once, passed = _timed(device, work, 1), 0.0
    while passed < seconds:
        once = _timed(device, work, 1)
        passed += once
    return max(1, int(_REPEAT_SECONDS / once))


def _timed(device: Any, work: Callable[[], object], count: int) -> float:
    import torch

    with torch.cuda.device(device):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(count):
            work()
        end.record()
        end.synchronize()
        return max(float(begin.elapsed_time(end)) / 1e3, 1e-6)


_WORK: dict[Resource, Callable[[Any], float]] = {
    Resource.DEVICE_MEMORY_FREE: _free,
    Resource.DEVICE_MATMUL: _matmul,
    Resource.DEVICE_MEMORY_BANDWIDTH: _copies,
    Resource.HOST_TO_DEVICE: partial(_host_copies, to_device=True),
    Resource.DEVICE_TO_HOST: partial(_host_copies, to_device=False),
}
