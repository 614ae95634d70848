"""A third tier: copies of slots in a directory, which stands in for another node's memory.

`CopiesTier` and its row in `three_tiers` are all that a node needs of it. A copy is an arena of one
slot in a file, so ranks restore from it as from memory.

    <lineage>.<step>.new/<rank>   being written
    <lineage>.<step>/<rank>       committed
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from checkpoints.led_nodes import LoneServer, alone
from holdfast.flash.memory.arena import Arena, ArenaError, geometry_of, make
from holdfast.flash.memory.slots import Version
from holdfast.flash.server.protocol import TrainerHello
from holdfast.flash.server.service import TIERS
from holdfast.flash.server.tiers import CheckpointTier, Images, SlotImage, TierError, TierNode, Work
from holdfast.flash.storage.commit import CommitError
from holdfast.flash.storage.manifest import Shard
from holdfast.flash.storage.writer import SlotWork, hashed
from holdfast_wire.messages import Tier


def copies_tier() -> Tier:
    """Return a value of `Tier` that this release does not have."""
    value = int.__new__(Tier, 77)
    value._name_, value._value_ = "COPIES", 77
    return value


def three_tiers(name: Tier, folder: Path) -> Mapping[Tier, Callable[[TierNode], CheckpointTier]]:
    """Return the table of tiers with a third one, between memory and storage."""
    folder.mkdir(exist_ok=True)
    return {
        Tier.MEMORY: TIERS[Tier.MEMORY],
        name: lambda _: CopiesTier(folder),
        Tier.STORAGE: TIERS[Tier.STORAGE],
    }


def node_with_copies(folder: Path, name: Tier, socket: str) -> AbstractContextManager[LoneServer]:
    """Serve one node without a master. Its memory is gone at the end; the copies stay."""
    return alone(folder / socket, tiers=three_tiers(name, folder / "copies"))


class CopiesTier:
    """Copies of the newest version; older ones go with its commit."""

    durable = False
    shared = None

    def __init__(self, folder: Path) -> None:
        """Take the directory of the copies."""
        self._folder = folder
        self._lent: list[int] = []
        """Descriptors of the images that ranks were given last."""

    def join(self, hello: TrainerHello, attempt: str, owner: str) -> None:
        """Do nothing: every world has the same directory."""

    # --- saves ----------------------------------------------------------------------------------

    def write(self, job: SlotWork) -> Shard:
        """Copy a slot and its hashes."""
        shard, arena = hashed(job), job.held.arena
        geometry = geometry_of(arena.table, len(arena.body), 1, arena.geometry.bytes_room)
        folder = Path(f"{self._path(job.version)}.new")
        try:
            folder.mkdir(exist_ok=True)
            fd = os.open(folder / str(job.held.rank), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                make(fd, arena.body, geometry)
                copy = Arena(fd)
            finally:
                os.close(fd)
        except (OSError, ArenaError) as error:
            raise CommitError(f"step {job.version.step} was not copied: {error}") from error
        (slot,) = copy.slots
        slot.begin_write(job.version)
        slot.image[:] = job.slot.image
        slot.commit(shard.lengths)
        slot.store_hashes(shard.hashes)
        copy.close()
        return shard

    def commit(self, job: SlotWork, parts: Mapping[int, Shard]) -> Work:
        """Let the copies of these ranks count, and delete the older ones."""
        final = self._path(job.version)

        def work() -> None:
            found = {int(file.name) for file in Path(f"{final}.new").iterdir()}
            if found != parts.keys():
                raise CommitError(f"step {job.version.step} has copies of ranks {sorted(found)}")
            Path(f"{final}.new").rename(final)
            self._keep(lambda version: version >= job.version)

        return work

    # --- restores -------------------------------------------------------------------------------

    def versions(self, asking: Sequence[TrainerHello]) -> Sequence[Version]:
        """Return the versions with copies of all of these ranks."""
        ranks = {str(hello.rank) for hello in asking}
        there = [
            version
            for version in self._committed()
            if ranks <= {file.name for file in self._path(version).iterdir()}
        ]
        return sorted(there, reverse=True)

    def newest(
        self, asking: Sequence[TrainerHello], above: Version | None
    ) -> tuple[Version | None, list[str]]:
        """Return the newest version whose copies are intact."""
        notes = []
        for version in self.versions(asking):
            if above is not None and version <= above:
                break
            try:
                self.verify(version, 0, 1)
            except TierError as error:
                notes.append(str(error))
            else:
                return version, notes
        return None, notes

    def verify(self, version: Version, share: int, shares: int) -> None:
        """Compare all copies with their hashes: they are this node's own."""
        for file in sorted(self._path(version).iterdir()):
            fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            try:
                copy = Arena(fd)
            except ArenaError as error:
                raise TierError(f"{file}: {error}") from error
            finally:
                os.close(fd)
            (slot,) = copy.slots
            whole = slot.is_hashed and slot.is_as_hashed
            copy.close()
            if not whole:
                raise TierError(f"step {version.step} was passed over: {file} is damaged")

    def images(self, version: Version) -> Images:
        """Return the slots of the copies."""
        self._give_up()
        found = []
        for file in sorted(self._path(version).iterdir()):
            self._lent.append(os.open(file, os.O_RDWR | os.O_CLOEXEC))
            found.append(SlotImage(rank=int(file.name), fd=self._lent[-1], index=0))
        return Images(slots=tuple(found))

    def resume(self, version: Version | None) -> Work | None:
        """Delete newer copies and unfinished ones; without a version, all of them."""
        self._give_up()
        for folder in self._folder.glob("*.new"):
            shutil.rmtree(folder)
        self._keep(lambda one: version is not None and one <= version)
        return None

    def _give_up(self) -> None:
        while self._lent:
            with suppress(OSError):
                os.close(self._lent.pop())

    def _keep(self, wanted: Callable[[Version], bool]) -> None:
        for version in self._committed():
            if not wanted(version):
                shutil.rmtree(self._path(version))

    def _committed(self) -> list[Version]:
        names = (path.name.split(".") for path in self._folder.iterdir())
        return [Version(int(one[0]), int(one[1])) for one in names if len(one) == 2]

    def _path(self, version: Version) -> Path:
        return self._folder / f"{version.lineage}.{version.step}"
