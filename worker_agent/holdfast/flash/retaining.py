"""Deletes the committed steps that retention gives up, and nothing that it cannot read.

What may go is decided in `decide.retention`. A step whose manifest a newer release wrote, or that
is damaged, may be somebody's last: it neither goes nor counts, and the log says so once.
"""

from __future__ import annotations

import logging
from typing import Final

from holdfast.flash import tags
from holdfast.flash.commit import delete_steps, is_own, steps
from holdfast.flash.decide.retention import RetentionSettings, is_for_good, to_delete
from holdfast.flash.disk import Disk
from holdfast.flash.manifest import MANIFEST_NAME, ManifestError, decode_manifest
from holdfast.flash.trouble import Trouble

log: Final = logging.getLogger(__name__)


class Retainer:
    """The committed steps of one directory, as one keeper sees them."""

    def __init__(self, disk: Disk, root: str, settings: RetentionSettings) -> None:
        """Take the directory, and what stays."""
        self._disk, self._root, self._settings = disk, root, settings
        self._readable: set[int] = set()
        """Steps whose manifest was read: a large one takes its time, and none changes."""
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
        # What others have put there neither goes nor counts.
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
