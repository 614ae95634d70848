"""Directories of this process's control groups, of either version, and the CPUs that they allow.

Groups are found whatever a container sees of those outside. Blocks for a few small files.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path("/")


@dataclasses.dataclass(frozen=True, slots=True)
class GroupFolder:
    """Directory of one control group."""

    path: Path
    unified: bool
    """True: version 2."""


def folders(root: Path, controller: str) -> Iterator[GroupFolder]:
    """Yield this process's group and all visible groups above it, the nearest first.

    root: Directory with /proc, and with the mounts that /proc names.
    controller: Name in version 1, for example `cpu`. A group of version 2 has all of them.
    """
    mounts = list(_mounts(root, controller))
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        unified = not controllers
        if not unified and controller not in controllers.split(","):
            continue
        for is_unified, top, mounted in mounts:
            if is_unified is unified:
                above = _upwards(root, mounted, top, group)
                yield from (GroupFolder(folder, unified) for folder in above)


def _mounts(root: Path, controller: str) -> Iterator[tuple[bool, str, str]]:
    """Yield (is version 2, group at the mount's top, mount point) of mounts of the controller."""
    for line in text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if kind[0] == "cgroup2":
            yield True, fields[3], fields[4]
        elif kind[0] == "cgroup" and controller in kind[-1].split(","):
            yield False, fields[3], fields[4]


def _upwards(root: Path, mounted: str, top: str, group: str) -> Iterator[Path]:
    folder = root / mounted.lstrip("/")
    below = os.path.relpath(group, top)
    # A container sees its own group at the mount's top, whatever the group's name outside is.
    parts = [] if below.startswith("..") or below == "." else below.split("/")
    for length in range(len(parts), -1, -1):
        yield folder.joinpath(*parts[:length])


def text(path: Path) -> str:
    """Return the text of a file; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def usable_cpus(root: Path = ROOT) -> int:
    """Return the number of whole CPUs that this process may keep busy, at least 1.

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
