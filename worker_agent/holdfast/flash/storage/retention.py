"""Deletes the committed steps that retention gives up, never one that a tag names.

A tag is a file in the directory `tags`. A trainer writes it before its step is committed, so
retention cannot delete the step in between. Until the new step is committed, the file names the
older steps too.

`retention_rule` decides which steps go. A step whose manifest is damaged, or that a newer release
wrote, may be the last good one of its owner: it neither goes nor counts, and the log names it once.
"""

from __future__ import annotations

import contextlib
import logging
import re
from typing import Final

from holdfast.flash.notices import FailureLog
from holdfast.flash.storage.commit import discard, write_whole
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import (
    MANIFEST_NAME,
    ManifestError,
    decode_manifest,
    is_own,
    steps,
)
from holdfast.flash.storage.retention_rule import is_for_good, to_delete
from holdfast_wire.messages.spec import CheckpointPolicy

TAGS_FOLDER: Final = "tags"
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def tag_of(tag: object) -> str:
    """Return a tag; raises ValueError for a text that is no valid file name everywhere."""
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        raise ValueError(
            f"tag={tag!r}: expected 1 to 64 letters, digits, points, lines and underscores, "
            "the first a letter or a digit"
        )
    return tag


def give_tag(disk: Disk, root: str, tag: str, step: int) -> None:
    """Let a tag name a step that exists or will exist, durably; raises OSError."""
    folder = f"{root}/{TAGS_FOLDER}"
    with contextlib.suppress(FileExistsError):
        disk.make_dir(folder)
        disk.sync_dir(root)
    older = [one for one in _kept_by(disk, root, tag) if one != step]
    content = "".join(f"{one}\n" for one in (step, *older)).encode()
    write_whole(disk, folder, tag, memoryview(content), len(content))


def step_of_tag(disk: Disk, root: str, tag: str) -> int:
    """Return the committed step that a tag names; 0: none."""
    there = set(steps(disk, root))
    return next((step for step in _named_by(disk, root, tag) if step in there), 0)


def pinned_steps(disk: Disk, root: str) -> frozenset[int]:
    """Return the steps that tags keep."""
    names = disk.names_if_any(f"{root}/{TAGS_FOLDER}")
    tags = [name for name in names if _TAG.fullmatch(name)]
    return frozenset(step for tag in tags for step in _kept_by(disk, root, tag))


def _kept_by(disk: Disk, root: str, tag: str) -> list[int]:
    """Return the steps that a tag names, up to the first committed one; older ones may go."""
    there, found = set(steps(disk, root)), list[int]()
    for step in _named_by(disk, root, tag):
        found.append(step)
        if step in there:
            break
    return found


def _named_by(disk: Disk, root: str, tag: str) -> list[int]:
    try:
        lines = disk.read(f"{root}/{TAGS_FOLDER}/{tag}").decode(errors="replace").split()
    except FileNotFoundError:
        return []
    return [int(line) for line in lines if line.isdecimal()]


log: Final = logging.getLogger(__name__)


class Retainer:
    """Retention in one directory, for one checkpoint server."""

    def __init__(self, disk: Disk, root: str, policy: CheckpointPolicy) -> None:
        self._disk, self._root, self._policy = disk, root, policy
        self._readable: set[int] = set()
        """Steps whose manifest was read before: reading a large one is slow, and none changes."""
        self._said: set[int] = set()
        self._failures = FailureLog()

    def delete_old(self, newest: int) -> None:
        """Delete what retention gives up, now that a step is committed."""
        self._readable.add(newest)
        try:
            self._delete(newest)
        except OSError as error:  # an old step that stays costs room, not safety
            if self._failures.is_new(str(error)):
                log.warning("old steps stay in %s: %s", self._root, error)
        else:
            self._failures.over()

    def _delete(self, newest: int) -> None:
        pinned = pinned_steps(self._disk, self._root)
        found = [step for step in steps(self._disk, self._root) if step <= newest]
        # Foreign steps neither go nor count.
        own = [step for step in found if is_own(self._disk, self._path(step))]
        counted = [
            step for step in own if is_for_good(step, self._policy, pinned) or self._can_read(step)
        ]
        gone = to_delete(counted, self._policy, pinned)
        for step in gone:
            discard(self._disk, self._root, self._path(step))
        self._readable.difference_update(gone)

    def _path(self, step: int) -> str:
        return f"{self._root}/step_{step}"

    def _can_read(self, step: int) -> bool:
        if step in self._readable:
            return True
        file = f"{self._path(step)}/{MANIFEST_NAME}"
        try:
            found = decode_manifest(self._disk.read(file), file).version.step
            if found != step:
                raise ManifestError(f"{file} is of step {found}: a copy, which no load takes")
        except (ManifestError, OSError) as error:
            if step not in self._said:
                self._said.add(step)
                log.warning("retention leaves step %d alone: %s", step, error)
            return False
        self._readable.add(step)
        return True
