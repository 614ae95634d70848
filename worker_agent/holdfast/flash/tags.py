"""Names of committed steps that retention never deletes: a file each, in the directory `tags`.

A trainer writes it before its step is committed, so retention cannot come in between; it names the
steps before too, for as long as the new one is not there.
"""

from __future__ import annotations

import contextlib
import re
from typing import Final

from holdfast.flash.commit import steps, write_whole
from holdfast.flash.disk import Disk

FOLDER: Final = "tags"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def tag_of(tag: object) -> str:
    """Return a tag; raises ValueError for what cannot be a file's name everywhere."""
    if not isinstance(tag, str) or not _NAME.fullmatch(tag):
        raise ValueError(
            f"tag={tag!r}: expected 1 to 64 letters, digits, points, lines and underscores, "
            "the first a letter or a digit"
        )
    return tag


def give(disk: Disk, root: str, tag: str, step: int) -> None:
    """Have a tag name a step that is there or will be, durably; raises OSError."""
    folder = f"{root}/{FOLDER}"
    with contextlib.suppress(FileExistsError):
        disk.make_dir(folder)
        disk.sync_dir(root)
    older = [one for one in _kept(disk, root, tag) if one != step]
    content = "".join(f"{one}\n" for one in (step, *older)).encode()
    write_whole(disk, folder, tag, memoryview(content), len(content))


def step_of(disk: Disk, root: str, tag: str) -> int:
    """Return the committed step that a tag names; 0 if none."""
    there = set(steps(disk, root))
    return next((step for step in _steps(disk, root, tag) if step in there), 0)


def pinned(disk: Disk, root: str) -> frozenset[int]:
    """Return the steps that must stay."""
    try:
        names = disk.names(f"{root}/{FOLDER}")
    except FileNotFoundError:
        return frozenset()
    tags = [name for name in names if _NAME.fullmatch(name)]
    return frozenset(step for tag in tags for step in _kept(disk, root, tag))


def _kept(disk: Disk, root: str, tag: str) -> list[int]:
    """Return what a tag names, up to the first that is committed: what was before that, may go."""
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
