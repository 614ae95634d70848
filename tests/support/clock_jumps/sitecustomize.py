"""Lets the wall clock jump by up to an hour, every seven seconds, in every Python process.

With this directory on PYTHONPATH the interpreter imports it at its start. CLOCK_JUMPS names a
directory, in which each process leaves what it is, and a seed. The kernel's own clock and the
monotonic one stay as they are: what waits in C is not touched.
"""

import os
import sys
import time
from pathlib import Path

_HOUR_SECONDS = 3600.0
_EACH_SECONDS = 7.0
_where, _, _seed = os.environ["CLOCK_JUMPS"].rpartition(":")
_real = time.time


def _jumping() -> float:
    number = int(time.monotonic() / _EACH_SECONDS)
    drawn = hash((int(_seed), number, os.getpid() // 2)) % 2_000_003 / 1_000_001.5 - 1.0
    return _real() + _HOUR_SECONDS * drawn


time.time = _jumping
time.time_ns = lambda: int(_jumping() * 1e9)
Path(_where, str(os.getpid())).write_text(" ".join(sys.orig_argv), encoding="utf-8")
