"""Room and speed of a folder: storage, and /dev/shm.

The file that is written loses its name before its first byte: nothing is left by a killed process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast_agent.health.node_check.measured import FigureReporter
from holdfast_wire.resources import Resource

SHM = Path("/dev/shm")  # noqa: S108 - it is what is measured
_CHUNK = 4 << 20
DISK_BYTES = 256 << 20
SHM_BYTES = 64 << 20
"""Most bytes that are written; never more than a quarter of the room."""
_WRITE_SECONDS = 0.8
_READ_SECONDS = 0.4
_SHM_SECONDS = 0.15
"""Longer than the period of a CPU quota (0.1 s): a throttled node cannot look fast for once."""
_SHM_REPEATS = 3
"""A write of shared memory is a copy by the CPU: whatever else runs for a moment halves one."""
_GIB = 1 << 30


def measure_disk(report: FigureReporter, folder: str) -> None:
    """Report room in GiB, durable writes and reads in GB/s.

    Each chunk is made durable by itself, so the page cache never holds much: a slow disk is found
    in a second, not after the cache is full.
    """
    with report.measures(Resource.DISK_ROOM, folder):
        report.figure(_room(folder) / _GIB)
    with contextlib.ExitStack() as opened:
        descriptor = -1
        with report.measures(Resource.DISK_WRITE, folder):
            descriptor = opened.enter_context(_nameless(folder))
            most = min(DISK_BYTES, _room(folder) // 4)
            report.figure(_write(descriptor, most, _WRITE_SECONDS, durable=True) / 1e9)
        if descriptor < 0:
            return
        with report.measures(Resource.DISK_READ, folder):
            report.figure(_read(descriptor) / 1e9)


def measure_shm(report: FigureReporter, folder: Path = SHM) -> None:
    """Report room in GiB and writes in GB/s of shared memory; the best of three."""
    with report.measures(Resource.SHM_ROOM, str(folder)):
        report.figure(_room(str(folder)) / _GIB)
    with report.measures(Resource.SHM_WRITE, str(folder)), _nameless(str(folder)) as descriptor:
        most = min(SHM_BYTES, _room(str(folder)) // 4)
        each = (_write(descriptor, most, _SHM_SECONDS, durable=False) for _ in range(_SHM_REPEATS))
        report.figure(max(each) / 1e9)


def _room(folder: str) -> int:
    """Return the bytes that a user without root may still write."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


@contextlib.contextmanager
def _nameless(folder: str) -> Iterator[int]:
    path = Path(folder) / f".holdfast-check-{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        path.unlink()
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, most: int, seconds: float, *, durable: bool) -> float:
    """Return bytes per second; the file wraps around where the time is not over at `most`."""
    chunk = min(_CHUNK, most)
    if chunk < mmap.PAGESIZE:
        raise OSError("there is no room to write")
    # Random bytes: file systems that compress or leave out zeros would look fast.
    data = secrets.token_bytes(chunk)
    written, begin = 0, time.monotonic()
    while (passed := time.monotonic() - begin) < seconds or not written:
        at = written % (most // chunk * chunk)
        count = os.pwrite(descriptor, data, at)
        if count < chunk:
            raise OSError(f"a write of {chunk} bytes ended after {count}")
        if durable:
            os.fdatasync(descriptor)
        written += count
    return written / passed


def _read(descriptor: int) -> float:
    size = os.fstat(descriptor).st_size
    # What the kernel still has in memory would be read from there.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    read, begin = 0, time.monotonic()
    while read < size and time.monotonic() - begin < _READ_SECONDS:
        read += len(os.pread(descriptor, _CHUNK, read))
    return read / (time.monotonic() - begin)
