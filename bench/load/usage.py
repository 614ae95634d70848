"""Resource usage of one process, from /proc. Nothing here knows the process's purpose."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """One look at a process."""

    cpu_s: float
    """User and system time of all its threads."""
    rss_mb: float
    peak_mb: float
    files: int
    """Open file descriptors."""


def parse(stat: str, status: str, files: int, ticks_per_second: int) -> Usage:
    """Read /proc/PID/stat and /proc/PID/status; megabytes are 10**6 bytes."""
    fields = stat.rpartition(") ")[2].split()
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return Usage(
        cpu_s=(int(fields[11]) + int(fields[12])) / ticks_per_second,
        rss_mb=_megabytes(lines["VmRSS"]),
        peak_mb=_megabytes(lines["VmHWM"]),
        files=files,
    )


def look(pid: int) -> Usage:
    """Look at a process.

    Raises:
        OSError: there is none.
    """
    at = Path("/proc") / str(pid)
    files = sum(1 for _ in (at / "fd").iterdir())
    stat, status = (at / "stat").read_text(), (at / "status").read_text()
    return parse(stat, status, files, os.sysconf("SC_CLK_TCK"))


def _megabytes(text: str) -> float:
    return int(text.split(maxsplit=1)[0]) * 1024 / 1e6
