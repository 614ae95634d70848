"""Directories of this process's control groups, of either version.

Belongs here: finding them, whatever a container sees of the groups outside. Does not belong here:
the files in them (`cpu_limit`, `workers.memory_use`). Blocks for two small files.
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

    Args:
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
