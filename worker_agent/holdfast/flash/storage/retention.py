"""Deletes the committed steps that retention gives up, and none that it cannot read.

`retention_rule` decides which steps go. A step whose manifest is damaged, or that a newer release
wrote, may be the last good one of its owner: it neither goes nor counts, and the log names it once.
"""

from __future__ import annotations

import logging
from typing import Final

from holdfast.flash.log_once import Trouble
from holdfast.flash.storage import tags
from holdfast.flash.storage.commit import delete_steps
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import (
    MANIFEST_NAME,
    ManifestError,
    decode_manifest,
    is_own,
    steps,
)
from holdfast.flash.storage.retention_rule import RetentionSettings, is_for_good, to_delete

log: Final = logging.getLogger(__name__)


class Retainer:
    """Retention in one directory, for one checkpoint server."""

    def __init__(self, disk: Disk, root: str, settings: RetentionSettings) -> None:
        """Take the directory, and the rule."""
        self._disk, self._root, self._settings = disk, root, settings
        self._readable: set[int] = set()
        """Steps whose manifest was read before: reading a large one is slow, and none changes."""
        self._said: set[int] = set()
        self._trouble = Trouble()

    def delete_old(self, newest: int) -> None:
        """Delete what retention gives up, now that a step is committed."""
        self._readable.add(newest)
        try:
            self._delete(newest)
        except OSError as error:  # an old step that stays costs room, not safety
            if self._trouble.is_new(str(error)):
                log.warning("old steps stay in %s: %s", self._root, error)
        else:
            self._trouble.over()

    def _delete(self, newest: int) -> None:
        pinned = tags.pinned(self._disk, self._root)
        found = [step for step in steps(self._disk, self._root) if step <= newest]
        # Foreign steps neither go nor count.
        own = [step for step in found if is_own(self._disk, self._path(step))]
        counted = [
            step
            for step in own
            if is_for_good(step, self._settings, pinned) or self._can_read(step)
        ]
        gone = to_delete(counted, self._settings, pinned)
        delete_steps(self._disk, self._root, gone)
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
