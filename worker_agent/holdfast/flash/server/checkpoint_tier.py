"""Interface of a checkpoint tier on one node: a place of checkpoints, such as memory or storage.

Belongs here: the operations that a tier has, and the values that they take and return. Does not
belong here: the tiers (`tiers` has the table), the order of the operations (`service`, the commit
and restore policies), the choice among the tiers (`choose_origin`, or the master).

Every save begins in a slot of an arena, whatever tier it is for. A tier frees what it holds by its
own rule, in two operations: `commit` frees what a newer version replaces, `resume` what a new world
cannot use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.flash.memory.slots import Version
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.server.protocol import RestoreStart, TrainerHello
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import Manifest, Shard
from holdfast.flash.storage.slot_work import SlotWork
from holdfast_wire.messages import CommitGrant

Work = Callable[[], None]
"""Slow work, for the worker thread."""
Commit = Callable[[SlotWork, Mapping[int, Shard]], Work]
"""Returns the work that commits a version; see `CheckpointTier.commit`."""


class TierError(Exception):
    """A tier cannot give what a start needs of it; the text is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierNode:
    """The parts of a node that its tiers use."""

    keeper: ArenaStore
    disk: Disk
    awaited: Callable[[], bool]
    """Tells, from any thread, whether a trainer is connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotImage:
    """One rank's image in a slot of an arena."""

    rank: int
    fd: int
    """Descriptor of the arena; it stays its owner's."""
    index: int
    """Index of the slot in its arena."""
    lent: bool = False
    """True: of another node; a rank must fetch the items that it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Images of one version: in slots, in the files of a directory, or in both."""

    slots: tuple[SlotImage, ...] = ()
    path: str = ""
    """Directory of a committed step; empty: none."""

    def start(self, version: Version, notes: Iterable[str], *, durable: bool) -> RestoreStart:
        """Return the message that has ranks start from these images."""
        return RestoreStart(
            lineage=version.lineage,
            step=version.step,
            path=self.path,
            ranks=tuple(one.rank for one in self.slots),
            slots=tuple(one.index for one in self.slots),
            lent=tuple(one.rank for one in self.slots if one.lent),
            durable=durable,
            notes=tuple(notes),
        )

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that travel with the message, in the order of its slots."""
        return [one.fd for one in self.slots]


class CheckpointTier(Protocol):
    """One tier of one node. The service's thread calls each operation that names no other."""

    @property
    def durable(self) -> bool:
        """True: no failure of a node loses a committed version, so ranks may wait for it."""

    @property
    def commit(self) -> Commit | None:
        """Lets a version count: the parts of all ranks here were written; frees what it replaces.

        It takes the last part's job, and the parts by rank. Its work raises `CommitError`.
        None: there is nothing to commit. The image in its slot is the copy, and a version counts
        once every rank has it.
        """

    @property
    def shared(self) -> SharedAttempts | None:
        """The operations on attempts in a place that all nodes write to.

        There a version of several nodes is committed once, by the node with the master's grant.
        None: each node commits the parts of its own ranks.
        """

    def join(self, hello: TrainerHello, attempt: str, owner: str) -> None:
        """Note a rank that has connected.

        attempt: Name of its world's attempts. owner: Name of the job.
        """

    def write(self, job: SlotWork) -> Shard:
        """Hash a slot and write it as one rank's part, on the worker thread.

        Raises `CommitError`.
        """

    def versions(self, asking: Sequence[TrainerHello]) -> Sequence[Version]:
        """Return the versions that these ranks could start from, newest first, for the master.

        Raises `TierError`, OSError or `FormatError` if the ranks must not start now.
        """

    def newest(
        self, asking: Sequence[TrainerHello], above: Version | None
    ) -> tuple[Version | None, list[str]]:
        """Return the newest intact version, if it is newer than `above`; without a master.

        With it comes a line for each version that was passed over. Raises OSError or `FormatError`
        if the ranks must not start now.
        """

    def verify(self, version: Version, share: int, shares: int) -> Manifest | None:
        """Verify this node's share of a version, on the worker thread, while no rank trains.

        share, shares: Verify part `share` of `shares` where all nodes read one place.
        Returns the manifest that the same version in slots is compared with; None: there is none.
        Raises `TierError` or `ManifestError` naming what is damaged.
        """

    def images(self, version: Version) -> Images:
        """Return the images of a version that a world starts from, after `resume`."""

    def resume(self, version: Version | None) -> Work | None:
        """Free what is of no use to a new world, which starts from `version` of this tier.

        None: it starts from another tier, or from nothing. Call it when no trainer of an older
        world lives. Returns the slow part of it, which raises OSError; None: there is none.
        """


class SharedAttempts(Protocol):
    """Attempts in a place that all nodes write to, and that a master or rank 0 commits."""

    @property
    def root(self) -> str:
        """Directory of the newest world that named one; empty: none has."""

    @property
    def attempt(self) -> str:
        """Name of that world's attempts; empty: see `root`."""

    def write_attempt(self, job: SlotWork, root: str, attempt: str, owner: str) -> Shard:
        """Write one rank's part to a named attempt, on the worker thread; raises `CommitError`."""

    def commit_granted(self, grant: CommitGrant, version: Version, owner: str) -> Work:
        """Return the work that commits a version, of whatever world; it raises `CommitError`."""

    def is_committed(self, root: str, version: Version) -> bool:
        """Tell whether a version is committed in a directory."""

    def leave_word(self, version: Version, final: str, rank: int, error: str) -> Work | None:
        """Return the work that tells other servers that a rank has no part of a version."""

    def leave_nothing(
        self, root: str, begun: frozenset[str], own: frozenset[str], *, first: bool
    ) -> None:
        """Delete this node's attempts when the job is over; raises OSError.

        begun: Names of the attempts that it wrote parts of. own: Attempts that it took to commit.
        first: It serves rank 0.
        """
