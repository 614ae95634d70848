"""Checkpoint tiers of one node: places of checkpoints, such as memory or storage.

Belongs here: the operations that a tier has, the values that they take and return; what memory and
storage do with the arenas of this node, or with a directory. Another tier is a module of its own,
and a row of `service.TIERS`.

Every save begins in a slot of an arena, whatever tier it is for. A tier frees what it holds by its
own rule, in two operations: `commit` frees what a newer version replaces, `resume` what a new world
cannot use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.flash.memory.slots import Version
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.server.protocol import TrainerHello
from holdfast.flash.storage import owners
from holdfast.flash.storage.commit import CommitError
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import Manifest, ManifestError, Shard
from holdfast.flash.storage.reader import committed, newest, verify
from holdfast.flash.storage.writer import SlotWork, StepStorage, hashed
from holdfast_wire.messages import CommitGrant
from holdfast_wire.messages.spec import CheckpointPolicy

_MOST_STORED: Final = 16
_KEEP_ALL: Final = CheckpointPolicy(keep_last=1_000_000)
"""Retention for a write or commit of another world than the present one."""
Work = Callable[[], None]
"""Slow work, for the worker thread."""
Commit = Callable[[SlotWork, Mapping[int, Shard]], Work]
"""Returns the work that commits a version; see `CheckpointTier.commit`."""


class TierError(Exception):
    """A tier cannot give what a start needs of it; the text is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierNode:
    """The parts of a node that its tiers use."""

    arenas: ArenaStore
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
    def shared(self) -> StorageTier | None:
        """The tier itself, if all nodes write to one place.

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


class MemoryTier:
    """Slots of this node's arenas. The store frees older ones once every rank has a version."""

    durable = False
    commit = None
    shared = None

    def __init__(self, node: TierNode) -> None:
        self._arenas = node.arenas

    def join(self, hello: TrainerHello, attempt: str, owner: str) -> None:
        """Note a rank that has connected."""
        self._arenas.join(hello)

    def write(self, job: SlotWork) -> Shard:
        """Hash the slot, so that a start can verify it."""
        return hashed(job)

    def versions(self, asking: Sequence[TrainerHello]) -> Sequence[Version]:
        """Return the versions from which these ranks could start with the images here."""
        ranks, arenas = [hello.rank for hello in asking], self._arenas
        asked = [arenas.needs[rank] for rank in ranks if rank in arenas.needs]
        return arenas.held.usable(ranks, arenas.world, asked)

    def newest(
        self, asking: Sequence[TrainerHello], above: Version | None
    ) -> tuple[Version | None, list[str]]:
        """Return the newest intact version that is complete here; empty the damaged slots."""
        notes: list[str] = []
        while (version := self._arenas.held.newest()) is not None:
            if above is not None and version <= above:
                break
            damage = self._arenas.held.drop_damaged(version)
            if not damage:
                return version, notes
            notes += damage
        return None, notes

    def verify(self, version: Version, share: int, shares: int) -> None:
        """Verify all slots here, and empty the damaged ones."""
        damage = self._arenas.held.drop_damaged(version)
        if damage:
            raise TierError("; ".join(damage))

    def images(self, version: Version) -> Images:
        """Return the slots of a version."""
        return Images(
            slots=tuple(
                SlotImage(rank=held.rank, fd=held.fd, index=slot.index)
                for held, slot in self._arenas.held.places(version)
            )
        )

    def resume(self, version: Version | None) -> None:
        """Empty newer and unfinished slots; without a version, all of them."""
        self._arenas.resume_from(version)


class StorageTier:
    """Committed steps in a directory that all nodes of the job see."""

    durable = True

    def __init__(self, node: TierNode) -> None:
        self._arenas, self.disk, self._awaited = node.arenas, node.disk, node.awaited
        self.storage: StepStorage | None = None
        """Directory of the newest world that named one; None: none has."""

    @property
    def shared(self) -> StorageTier:
        """This tier: all nodes write to the directory."""
        return self

    @property
    def root(self) -> str:
        """Path of the directory; empty: no world has named one."""
        return self.storage.root if self.storage else ""

    @property
    def attempt(self) -> str:
        """Name of the newest world's attempts; empty: no world has named a directory."""
        return self.storage.token if self.storage else ""

    def join(self, hello: TrainerHello, attempt: str, owner: str) -> None:
        """Take the directory that the rank names, if it names one."""
        known = self.storage
        if hello.root and (known is None or (known.root, known.token) != (hello.root, attempt)):
            self.storage = StepStorage(
                self.disk, hello.root, attempt, hello.policy, owner, awaited=self._awaited
            )

    # --- saves ----------------------------------------------------------------------------------

    def write(self, job: SlotWork) -> Shard:
        """Hash a slot and write it to the newest world's attempt."""
        if self.storage is None:
            hashed(job)
            raise CommitError("the trainer named no directory")
        # Other servers will read a description of this part, also the node with a master's grant.
        alone = self._arenas.led or job.held.arena.table.world > self._arenas.kept
        return self.storage.write(job, alone=alone)

    def write_attempt(self, job: SlotWork, root: str, attempt: str, owner: str) -> Shard:
        """Hash a slot and write it to an attempt that the master has named; see `write`."""
        return StepStorage(self.disk, root, attempt, _KEEP_ALL, owner).write(job, alone=True)

    def commit(self, job: SlotWork, parts: Mapping[int, Shard]) -> Work:
        """Commit the step, or wait for the server of rank 0 to do it; then apply retention."""
        storage = self.storage
        assert storage is not None, "a part was written to it"  # noqa: S101
        return lambda: storage.commit(job, parts)

    def commit_granted(self, grant: CommitGrant, version: Version, owner: str) -> Work:
        """Return the work that commits a step, which another world may have saved elsewhere."""
        storage = self.storage
        if storage is None or storage.root != grant.root:
            storage = StepStorage(self.disk, grant.root, grant.attempt, _KEEP_ALL, owner)
        own: StepStorage = storage
        return lambda: own.commit_granted(
            version, world=grant.world_size, attempt=grant.attempt, own=grant.own
        )

    def leave_word(self, version: Version, final: str, rank: int, error: str) -> Work | None:
        """Return the work that tells other servers that a rank has no part of a version."""
        storage = self.storage
        if storage is None:
            return None
        return lambda: storage.leave_word(version, final, rank, error)

    # --- restores -------------------------------------------------------------------------------

    def versions(self, asking: Sequence[TrainerHello]) -> Sequence[Version]:
        """Return the newest committed versions, unless a newer job has the directory."""
        if self.storage is None:
            return []
        root, owner = self.storage.root, self.storage.owner
        if reason := owners.superseded(self.disk, root, owner):
            raise TierError(reason)
        return committed(self.disk, root, _MOST_STORED)

    def newest(
        self, asking: Sequence[TrainerHello], above: Version | None
    ) -> tuple[Version | None, list[str]]:
        """Return the newest committed step whose hashes all match."""
        root = asking[0].root
        if not root:
            return None, []
        found, damaged = newest(self.disk, root, above)
        return found.version if found else None, damaged

    def verify(self, version: Version, share: int, shares: int) -> Manifest | None:
        """Verify this node's share of the step's files."""
        if self.storage is None:
            return None
        path = f"{self.storage.root}/step_{version.step}"
        found = verify(self.disk, path, share, shares)
        if found.version != version:
            lineage = found.version.lineage
            raise ManifestError(f"{path} is of lineage {lineage}, not {version.lineage}")
        return found

    def images(self, version: Version) -> Images:
        """Return the directory of the step."""
        return Images(path=f"{self.root}/step_{version.step}")

    def resume(self, version: Version | None) -> Work | None:
        """Delete earlier worlds' unfinished attempts, after the work under way for them."""
        storage = self.storage
        if storage is None:
            return None
        root = storage.root
        folders = owners.left_behind(self.disk, root, storage.token)
        return lambda: owners.clear_up(self.disk, root, folders)
