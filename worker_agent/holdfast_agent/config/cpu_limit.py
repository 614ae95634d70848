"""Number of CPUs of this process: its affinity, and the quota of its control group.

Belongs here: reading both versions of cgroups, and the meaning of the numbers. Does not belong
here: the use of the count (`flags`). Blocks for a few small files.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast_agent.config.cgroups import ROOT, folders, text


def usable_cpus(root: Path = ROOT) -> int:
    """Return the number of whole CPUs that this process may keep busy, at least 1.

    Args:
        root: Directory with /proc, and with the mounts that /proc names.
    """
    count = len(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    return count if quota is None else max(1, min(count, int(quota)))


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the CPUs that the control groups above this process allow; None: they set no limit."""
    limits = [
        limit
        for folder in folders(root, "cpu")
        if (limit := (_read_unified if folder.unified else _read_legacy)(folder.path)) is not None
    ]
    return min(limits, default=None)


def _read_unified(folder: Path) -> float | None:
    """Read `cpu.max`: a quota or `max`, and the period, in microseconds."""
    words = text(folder / "cpu.max").split()
    return _share(words[0], words[1]) if len(words) == 2 else None


def _read_legacy(folder: Path) -> float | None:
    """Read version 1's files; a quota of -1 means no limit."""
    quota = text(folder / "cpu.cfs_quota_us").strip()
    return _share(quota, text(folder / "cpu.cfs_period_us").strip())


def _share(quota: str, period: str) -> float | None:
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return None
    return int(quota) / int(period)
