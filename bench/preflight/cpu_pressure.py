"""Time in which tasks of this machine waited for a CPU, from the kernel's pressure figures."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_PRESSURE = Path("/proc/pressure/cpu")


@contextlib.contextmanager
def measured() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the share of the block's time so far in which a task waited."""
    begin, before = time.monotonic(), _seconds()
    yield lambda: round((_seconds() - before) / max(1e-6, time.monotonic() - begin), 3)


def _seconds() -> float:
    if not _PRESSURE.exists():
        return 0.0
    first = _PRESSURE.read_text(encoding="ascii").splitlines()[0]
    return int(first.rpartition("total=")[2]) / 1e6
