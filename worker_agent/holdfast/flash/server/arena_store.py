"""The arena store: makes the arenas of a node's ranks, and keeps the versions saved to them.

Belongs here: making, taking over and freeing arenas; giving slots back to trainers; the versions
that the arenas can serve, and the worlds that can use them.

One store is used by one thread, of an agent or of the process that replaces an agent (`main`). It
owns every VALID slot. It hands out slow work (hashing, writing) as `SlotWork`, which any thread may
do; `done` gives the slot back to the store. No torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from holdfast.flash.ids import unique
from holdfast.flash.memory.arena import (
    Arena,
    ArenaError,
    ArenaSlot,
    RankArena,
    SlotWord,
    geometry_of,
    in_memory,
)
from holdfast.flash.memory.memory_budget import Room, memory_left, refusal
from holdfast.flash.memory.recovery import ArenaBackend, BackendError
from holdfast.flash.memory.shard_table import Needs, ShardTable, TableError, decode, lacking, whole
from holdfast.flash.memory.slots import (
    Move,
    SlotState,
    Version,
    outdated,
    passed_over,
    releasable,
)
from holdfast.flash.server.protocol import Layout, TrainerHello
from holdfast.flash.storage.manifest import Manifest
from holdfast.flash.storage.writer import SlotWork
from holdfast_wire.messages import Tier

_NEVER: Final = Version(-1, -1)
_FAULTING: Final = min(4, max(1, len(os.sched_getaffinity(0)) // 2))
"""Threads that fault an arena in: the ranks need the other cores."""


class ArenaStoreError(Exception):
    """The store cannot give a trainer what it asked for; the text is for the user."""


class ArenaStore:
    """Arenas by rank, and the newest complete version in them."""

    def __init__(
        self,
        room: Callable[[], Room] = memory_left,
        *,
        led: bool = False,
        backend: ArenaBackend | None = None,
    ) -> None:
        """Take the reader of the free memory; led: the master says which version is complete.

        backend: Backend of new arenas; None: memory that is gone with the processes that map it.
        """
        self.held = ArenaSet()
        self.led = led
        self._backend = backend
        self.lineage = -1
        """Round of the newest world whose ranks have connected; -1: none has."""
        self.here: set[int] = set()
        """Ranks of the newest world that have connected."""
        self._passed_over: frozenset[Version] = frozenset()
        self.room = room
        self.world = 0
        """Number of ranks in the world."""
        self.kept = 0
        """Number of the world's ranks that this store serves."""
        self.needs: dict[int, Needs] = {}
        """Parts of the model that ranks of the newest world have asked for."""
        self.asked: set[tuple[int, Version, Tier]] = set()
        """Versions of ranks queued for another tier and not yet being written."""
        self.listen: Callable[[], None] = lambda: None
        """Completes `asked` with all that ranks have sent so far. Called before a slot is given
        back: a slot that turned VALID later may have been announced earlier."""
        self.token = unique()
        self.complete: Version | None = None
        """Newest version that is VALID on every rank here."""

    def join(self, hello: TrainerHello) -> None:
        """Note a rank that has connected; a world of another size changes what is complete."""
        if hello.lineage != self.lineage:
            self.lineage, self.here, self.needs = hello.lineage, set(), {}
        self.here.add(hello.rank)
        self.world, self.kept = hello.world, hello.kept

    def find_arena(self, rank: int, layout: Layout) -> RankArena | None:
        """Return the arena that exists for a layout; None: it is to be made, after a release."""
        body = layout.table.encode()
        for held in self.held.by_rank.get(rank, ()):
            if held.arena.body == body and held.arena.geometry.bytes_room >= layout.bytes_room:
                return held
        self.release()
        return None

    def make(self, rank: int, layout: Layout) -> RankArena:
        """Make an arena, faulted in, on any thread; one at a time, as each checks the free memory.

        The store does not change until `held.add`. Raises `ArenaStoreError` if there is no room,
        before any allocation, if the layout is not valid, or the arena cannot be made.
        """
        body = layout.table.encode()
        try:
            geometry = geometry_of(decode(body), len(body), layout.slots, layout.bytes_room)
            if reason := refusal(geometry.total, self.room()):
                raise ArenaStoreError(f"rank {rank}: {reason}")
            if self._backend is None:
                fd, path = in_memory(body, geometry), ""
            else:
                fd, path = self._backend.make(body, geometry)
        except (TableError, BackendError, ArenaError, OSError) as error:
            raise ArenaStoreError(f"rank {rank}: {error}") from error
        held = RankArena(Arena(fd), fd, path)
        try:
            held.arena.enlarge(threads=_FAULTING)
            held.arena.fault_in(threads=_FAULTING)
        except OSError as error:
            self._free([held])
            raise ArenaStoreError(f"rank {rank}: {error}") from error
        return held

    def take_over(self) -> list[str]:
        """Take up the arenas of a dead agent; return a sentence for each arena given up.

        Call it first. The arenas then count as if this store had made them.
        """
        if self._backend is None:
            return []
        found, notes = self._backend.take_over()
        for held in found:
            self.held.add(held)
        return notes

    def saved(
        self, rank: int, version: Version, tier: Tier = Tier.MEMORY, *, work: bool = True
    ) -> SlotWork | None:
        """Note a VALID slot; return the work on it, if it is to be written and still there."""
        found = self.held.find(rank, version)
        self._look_for_complete()
        if found is None or not work:
            self.release()
            return None
        job = _reading(*found, tier)
        self.release()
        return job

    def done(self, job: SlotWork) -> None:
        """Release a slot that a job has read."""
        job.held.reading.remove(job.slot.index)
        self.release()

    def newest_here(self) -> list[SlotWork]:
        """Return the slots of the newest version here, to be read; `done` ends each."""
        version = max(self.held.parts(), default=_NEVER)
        return [_reading(held, slot, Tier.MEMORY) for held, slot in self.held.places(version)]

    def _look_for_complete(self) -> None:
        if self.led and self.kept != self.world:
            return  # only the master knows the versions of other nodes
        ranks = range(self.world) if self.kept == self.world else self.held.ranks
        if len(ranks) < self.kept:
            return  # a rank that has no arena yet has no version in common with the others
        found = max(self.held.common(ranks), default=_NEVER)
        if found > (self.complete or _NEVER):
            self.complete = found

    def release(self) -> None:
        """Give back the slots, and free the arenas, that are not needed any more."""
        self.listen()
        versions = {rank: self.held.versions(rank) for rank in self.held.by_rank}
        hopeless = passed_over(versions, complete=self.complete) | self._passed_over
        for rank, arenas in self.held.by_rank.items():
            for held in arenas:
                for index in releasable(
                    held.arena.views(),
                    complete=self.complete,
                    read=self._read(held),
                    hopeless=hopeless,
                ):
                    held.arena.slots[index].give_back(Move.RELEASE)
            outside = len(self.here) >= self.kept > 0 and rank not in self.here
            old = [held for held in (arenas if outside else arenas[:-1]) if held.is_empty]
            self.held.by_rank[rank] = [held for held in arenas if held not in old]
            self._free(old)

    def _read(self, held: RankArena) -> frozenset[int]:
        """Return the slots with a reader, or with one to come."""
        asked = {version for rank, version, _ in self.asked if rank == held.rank}
        awaited = {slot.index for slot in held.arena.slots if asked and slot.version in asked}
        return frozenset(held.reading) | awaited

    def note_complete(self, complete: Version | None, hopeless: frozenset[Version]) -> None:
        """Take from the master the version that all nodes have, and those they never will."""
        if complete is not None and complete > (self.complete or _NEVER):
            self.complete = complete
        self._passed_over = hopeless
        self.release()

    def resume_from(self, version: Version | None) -> None:
        """Resume from a version in memory: empty newer or unfinished slots.

        None: from another tier, or from nothing. Call it when no trainer of an older world lives.
        """
        for arenas in self.held.by_rank.values():
            for held in arenas:
                for index in outdated(held.arena.views(), resume=version):
                    slot = held.arena.slots[index]
                    valid = slot.state is SlotState.VALID
                    slot.give_back(Move.RELEASE if valid else Move.ABANDON)
        self.complete, self._passed_over = version, frozenset()
        self.release()  # older slots that a dead server, or a lost message, has left

    def close(self) -> None:
        """Free all arenas, and their files."""
        for arenas in self.held.by_rank.values():
            self._free(arenas)
        self.held.by_rank.clear()
        if self._backend is not None:
            self._backend.close()

    def _free(self, arenas: Iterable[RankArena]) -> None:
        for held in arenas:
            if self._backend is not None:
                self._backend.remove(held.path)
            held.close()


def _reading(held: RankArena, slot: ArenaSlot, tier: Tier) -> SlotWork:
    """Keep a slot from being given back until `done`."""
    held.reading.append(slot.index)
    return SlotWork(held=held, slot=slot, version=slot.version, tier=tier)


class ArenaSet:
    """Arenas of a node by rank, the newest of each last, and the versions that they can serve."""

    def __init__(self) -> None:
        self.by_rank: dict[int, list[RankArena]] = {}
        self._wholes: dict[tuple[int, ...], bool] = {}
        """Layouts → whether they are whole together; cached, since every save asks for it."""

    def add(self, held: RankArena) -> None:
        """Add an arena, as the newest of its rank; the rank's older ones go once they are empty."""
        self.by_rank.setdefault(held.rank, []).append(held)

    @property
    def ranks(self) -> list[int]:
        """Ranks that have an arena here."""
        return sorted(self.by_rank)

    def versions(self, rank: int) -> set[Version]:
        """Return the VALID versions in the rank's arenas."""
        return {
            slot.version
            for held in self.by_rank.get(rank, ())
            for slot in held.arena.slots
            if slot.state is SlotState.VALID
        }

    def find(self, rank: int, version: Version) -> tuple[RankArena, ArenaSlot] | None:
        """Return the arena and slot where a rank's version is VALID, in the newest such arena."""
        for held in reversed(self.by_rank.get(rank, [])):
            for slot in held.arena.slots:
                if slot.state is SlotState.VALID and slot.version == version:
                    return held, slot
        return None

    def places(
        self, version: Version, ranks: Iterable[int] | None = None
    ) -> list[tuple[RankArena, ArenaSlot]]:
        """Return the arena and slot of each rank's part of a version; ranks: None: all here."""
        found = (self.find(rank, version) for rank in (self.ranks if ranks is None else ranks))
        return [place for place in found if place is not None]

    def tables(self, version: Version, ranks: Iterable[int] | None = None) -> list[ShardTable]:
        """Return the table of each rank's part of a version; ranks: None: all here."""
        return [held.arena.table for held, _ in self.places(version, ranks)]

    def common(self, ranks: Iterable[int]) -> frozenset[Version]:
        """Return the versions that are VALID on all of these ranks."""
        sets = [self.versions(rank) for rank in ranks]
        return frozenset(set.intersection(*sets)) if sets else frozenset()

    def saved_by(self, ranks: Iterable[int], world: int) -> frozenset[Version]:
        """Return the versions that are VALID on all of these ranks, saved by a world of this size.

        A world of another size may have left other versions under the same numbers.
        """
        mine = list(ranks)
        return frozenset(
            version
            for version in self.common(mine)
            if {table.world for table in self.tables(version, mine)} == {world}
        )

    def usable(
        self, ranks: Iterable[int], world: int, asked: Sequence[Needs] = ()
    ) -> list[Version]:
        """Return the versions that these ranks could start from, newest first.

        A world of this size saved them, and the ranks' images hold all that each rank needs. (Of a
        tensor that is alike on several nodes, another node may have stored a piece.)

        asked: What the ranks need now: a world of the same size may have another layout.
        """
        mine = list(ranks)
        found = self.saved_by(mine, world)
        return sorted((v for v in found if not lacking(self.tables(v, mine), asked)), reverse=True)

    def parts(self) -> dict[Version, tuple[int, tuple[int, ...]]]:
        """Return the versions in memory here, of any world: version → (world size, ranks)."""
        found: dict[Version, tuple[int, tuple[int, ...]]] = {}
        for version in set().union(*map(self.versions, self.ranks)):
            tables = self.tables(version)
            if len({table.world for table in tables}) == 1:
                found[version] = (tables[0].world, tuple(table.rank for table in tables))
        return found

    def is_whole(self, versions: Iterable[Version]) -> bool:
        """Return True if this node alone can restore any world from each of these versions.

        False without versions: no node may count on a node that has nothing.
        """
        found = list(versions)
        return bool(found) and all(map(self._is_whole, found))

    def _is_whole(self, version: Version) -> bool:
        layouts = tuple(held.arena.layout for held, _ in self.places(version))
        if layouts not in self._wholes:
            self._wholes = {layouts: whole(self.tables(version))}
        return self._wholes[layouts]

    def drop_damaged(self, version: Version) -> list[str]:
        """Empty the slots of a version whose bytes do not match their hashes; name them."""
        notes = []
        for held, slot in self.places(version):
            proven = held.proven.pop(slot.index, -1) == slot.words[SlotWord.SEQUENCE]
            if slot.is_hashed and not proven and not slot.is_as_hashed:
                slot.give_back(Move.RELEASE)
                notes.append(
                    f"step {version.step} of rank {held.rank} was passed over: slot {slot.index} "
                    f"in memory is damaged"
                )
        return notes

    def drop_unlike(self, manifest: Manifest) -> None:
        """Empty the slots of a committed version that differ from the committed bytes.

        Another world with the same number may have saved them, or they are damaged.
        """
        stored = {shard.table.rank: shard for shard in manifest.shards}
        for held, slot in self.places(manifest.version):
            shard, form = stored.get(held.rank), (held.arena.table, tuple(slot.lengths))
            if (
                shard is None
                or (shard.table, shard.lengths) != form
                or slot.hash_image(training=False) != shard.hashes
            ):
                slot.give_back(Move.RELEASE)

    def newest(self) -> Version | None:
        """Return the newest version that is complete here, of a world of any size; or None."""
        worlds = {held.arena.table.world for arenas in self.by_rank.values() for held in arenas}
        found = (version for world in worlds for version in self.saved_by(range(world), world))
        return max(found, default=None)


def prove(jobs: Iterable[SlotWork]) -> None:
    """Compare the hashes of slots; note those that match, for the next verification of each.

    Nothing is done about the others: a trainer may write to a slot meanwhile.
    """
    for job in jobs:
        slot, sequence = job.slot, int(job.slot.words[SlotWord.SEQUENCE])
        if slot.is_hashed and slot.is_as_hashed:
            job.held.proven[slot.index] = sequence
