"""CPU time of its own for each node that shares a core with others: cgroups with a quota.

Belongs here: making and removing the cgroups, of version 1 and 2. Does not belong here: the share.

Without a quota a node is as fast as its neighbours let it be, so a check of healthy nodes finds
fast and slow ones. With it each has a core's share to itself, as a smaller node has.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PERIOD_US = 10_000
"""Kernel's default is 100,000: a measurement of milliseconds would see a whole core or none."""
_V1 = Path("/sys/fs/cgroup/cpu")
_V2 = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def cgroups(nodes: int, share: float) -> Iterator[list[Path]]:
    """Yield the file of each node's cgroup that takes process ids; none: this machine has no quota.

    Args:
        nodes: Number of nodes.
        share: Of a core, for each node.
    """
    base = _base()
    folders = [base / f"holdfast-bench-{os.getpid()}-{at}" for at in range(nodes)] if base else []
    with contextlib.ExitStack() as stack:
        for folder in folders:
            folder.mkdir()
            stack.callback(folder.rmdir)
            _limit(folder, int(share * _PERIOD_US))
        yield [folder / "cgroup.procs" for folder in folders]


def _base() -> Path | None:
    """Return the cgroup under which this process may make others with a quota."""
    if (_V1 / "cpu.cfs_quota_us").exists() and os.access(_V1, os.W_OK):
        return _V1
    control = _V2 / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        if "cpu" in control.read_text().split() and os.access(_V2, os.W_OK):
            return _V2
    return None


def _limit(folder: Path, quota_us: int) -> None:
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        return
    (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
    (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
