"""Names of committed steps that retention never deletes: a file each, in the directory `tags`.

A trainer writes the tag before its step is committed, so retention cannot delete the step in
between. Until the new step is committed, the file names the older steps too.
"""

from __future__ import annotations

import contextlib
import re
from typing import Final

from holdfast.flash.storage.commit import write_whole
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import steps

FOLDER: Final = "tags"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def tag_of(tag: object) -> str:
    """Return a tag; raises ValueError for a text that is no valid file name everywhere."""
    if not isinstance(tag, str) or not _NAME.fullmatch(tag):
        raise ValueError(
            f"tag={tag!r}: expected 1 to 64 letters, digits, points, lines and underscores, "
            "the first a letter or a digit"
        )
    return tag


def give(disk: Disk, root: str, tag: str, step: int) -> None:
    """Let a tag name a step that exists or will exist, durably; raises OSError."""
    folder = f"{root}/{FOLDER}"
    with contextlib.suppress(FileExistsError):
        disk.make_dir(folder)
        disk.sync_dir(root)
    older = [one for one in _kept(disk, root, tag) if one != step]
    content = "".join(f"{one}\n" for one in (step, *older)).encode()
    write_whole(disk, folder, tag, memoryview(content), len(content))


def step_of(disk: Disk, root: str, tag: str) -> int:
    """Return the committed step that a tag names; 0: none."""
    there = set(steps(disk, root))
    return next((step for step in _steps(disk, root, tag) if step in there), 0)


def pinned(disk: Disk, root: str) -> frozenset[int]:
    """Return the steps that tags keep."""
    try:
        names = disk.names(f"{root}/{FOLDER}")
    except FileNotFoundError:
        return frozenset()
    tags = [name for name in names if _NAME.fullmatch(name)]
    return frozenset(step for tag in tags for step in _kept(disk, root, tag))


def _kept(disk: Disk, root: str, tag: str) -> list[int]:
    """Return the steps that a tag names, up to the first committed one; older ones may go."""
    there, found = set(steps(disk, root)), list[int]()
    for step in _steps(disk, root, tag):
        found.append(step)
        if step in there:
            break
    return found


def _steps(disk: Disk, root: str, tag: str) -> list[int]:
    try:
        lines = disk.read(f"{root}/{FOLDER}/{tag}").decode(errors="replace").split()
    except FileNotFoundError:
        return []
    return [int(line) for line in lines if line.isdecimal()]
