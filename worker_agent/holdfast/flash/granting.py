"""Commits that a master lets this keeper do: each once, its outcome told until it is known.

All methods run on the service's own thread. Does not belong here: what a commit is (`persisting`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.flash.commit import CommitError
from holdfast.flash.decide.retention import RetentionSettings
from holdfast.flash.disk import Disk
from holdfast.flash.labour import Labour, failure_of
from holdfast.flash.persisting import Grant, Storage

_KEPT_ENDS: Final = 8
"""Outcomes that a new master hears of again: more than a master has under way at once."""


class Grants:
    """The grants of one keeper."""

    def __init__(
        self, disk: Disk, labour: Labour, owner: str, tell: Callable[[Grant, str], None]
    ) -> None:
        """Take who does the work, for which job, and what tells the master how it ended."""
        self._disk, self._labour, self._owner, self._tell = disk, labour, owner, tell
        self.own: set[tuple[str, str]] = set()
        """Directory and own name of all that were given."""
        self._ended: list[tuple[Grant, str]] = []

    def carry_out(self, grant: Grant, storage: Storage | None) -> None:
        """Commit a step, once; storage: of the world that is here, which may be another's."""
        if (grant.root, grant.own) in self.own:
            return  # it is being done, or was: `restate` tells
        self.own.add((grant.root, grant.own))
        fits = storage is not None and storage.root == grant.root
        own = storage if storage is not None and fits else self._other(grant)
        self._labour.hand_out(
            lambda: failure_of(
                f"committing step {grant.version.step}",
                lambda: own.commit_granted(grant),
                CommitError,
            ),
            lambda error: self._carried_out(grant, error),
        )

    def _other(self, grant: Grant) -> Storage:
        keep_all = RetentionSettings(keep_last=1_000_000)
        return Storage(self._disk, grant.root, grant.attempt, keep_all, self._owner)

    def _carried_out(self, grant: Grant, error: str) -> None:
        self._ended = [*self._ended[-_KEPT_ENDS:], (grant, error)]
        self._tell(grant, error)

    def restate(self) -> None:
        """Tell a master that may know nothing of it what has ended."""
        for grant, error in self._ended:
            self._tell(grant, error)
