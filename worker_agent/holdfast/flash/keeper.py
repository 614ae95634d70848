"""The keeper: holds the arenas of a node's ranks, and sees to it that what is saved is kept.

One object, used by one thread: an agent's, or the process that stands in for an agent
(`keeping`). It owns every VALID slot. Slow work (hashing, writing) is handed out as `Job`s, which
any thread may run; their outcome comes back through `done`. No torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from holdfast.flash.arena import Arena, ArenaError, Geometry, Slot, geometry_of, in_memory
from holdfast.flash.commit import unique
from holdfast.flash.decide.room import Room, RoomSettings, refusal
from holdfast.flash.decide.slots import (
    Move,
    SlotState,
    Version,
    newest_complete,
    outdated,
    passed_over,
    releasable,
)
from holdfast.flash.header import SlotWord
from holdfast.flash.inheritance import Place, PlaceError
from holdfast.flash.link import Hello, Layout
from holdfast.flash.manifest import Manifest, Shard, hash_items
from holdfast.flash.room import memory_left
from holdfast.flash.table import TableError, decode, lacking, whole

_NEVER: Final = Version(-1, -1)
_FAULTING: Final = min(4, max(1, len(os.sched_getaffinity(0)) // 2))
"""Threads that make an arena: one makes about 1 GB/s, and ranks want their cores."""


class KeeperError(Exception):
    """A trainer asked for what it cannot have; the text is for its user."""


@dataclass(eq=False, slots=True)
class Held:
    """One arena of one rank."""

    rank: int
    fd: int
    arena: Arena
    path: str = ""
    """What its place calls it; empty: it is in memory that nobody else can find."""
    reading: list[int] = field(default_factory=list)
    """Slots that jobs read, once for each job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An arena that is to be made."""

    rank: int
    body: bytes
    geometry: Geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work on one VALID slot."""

    held: Held
    slot: Slot
    version: Version
    durable: bool
    final: str = ""
    """Where the checkpoint is to be; empty: the root's directory of that step."""


class Keeper:
    """Arenas by rank, and which of their versions are complete."""

    def __init__(
        self,
        room: Callable[[], Room] = memory_left,
        settings: RoomSettings = RoomSettings(),  # noqa: B008 - frozen
        *,
        led: bool = False,
        volume: Place | None = None,
    ) -> None:
        """Take the source of the memory that is left; led: a master says what is complete.

        volume: Where new arenas lie; None: in memory that is gone with its holders.
        """
        self.led = led
        self._volume = volume
        self._lineage = -1
        self.here: set[int] = set()
        """Ranks of the newest world that have said hello."""
        self._passed_over: frozenset[Version] = frozenset()
        self.room = room
        self._settings = settings
        self._held: dict[int, list[Held]] = {}
        self.world = 0
        """Ranks of the world."""
        self.kept = 0
        """Ranks that this keeper holds together, of those in the world."""
        self.asked: set[tuple[int, Version]] = set()
        """Ranks' versions that are to go to storage, and that nobody has begun with."""
        self.listen: Callable[[], None] = lambda: None
        """Has `asked` hold all that ranks have said so far; called before a slot is given back: one
        that turned VALID after another was told of before it."""
        self.token = unique()
        self._wholes: dict[tuple[int, ...], bool] = {}
        """Whether the newest layouts together are whole: it is asked at every save."""
        self.complete: Version | None = None
        """The newest version that is VALID on every rank here."""

    def join(self, hello: Hello) -> None:
        """Take note of a rank; a world of another size changes what complete means."""
        if hello.lineage != self._lineage:
            self._lineage, self.here = hello.lineage, set()
        self.here.add(hello.rank)
        self.world, self.kept = hello.world, hello.kept

    @property
    def lineage(self) -> int:
        """Round of the newest world whose ranks have said hello; -1: none has."""
        return self._lineage

    @property
    def ranks(self) -> list[int]:
        """Ranks that have an arena here."""
        return sorted(self._held)

    def versions(self, rank: int) -> set[Version]:
        """Return what is VALID in the rank's arenas."""
        return {
            slot.version
            for held in self._held.get(rank, ())
            for slot in held.arena.slots
            if slot.state is SlotState.VALID
        }

    def grant(self, rank: int, layout: Layout) -> Held:
        """Return an arena for the layout: the one that is there, or a new one, pre-faulted.

        Raises `KeeperError` when there is no room, before anything is allocated.
        """
        wanted = self.look_up(rank, layout)
        return wanted if isinstance(wanted, Held) else self.adopt(self.make(wanted))

    def look_up(self, rank: int, layout: Layout) -> Held | Wanted:
        """Return the arena that is there for a layout, or what is to be made.

        Raises `KeeperError` for a layout that is none.
        """
        body = layout.table.encode()
        for held in self._held.get(rank, ()):
            if held.arena.body == body and held.arena.geometry.bytes_room >= layout.bytes_room:
                return held
        try:
            geometry = geometry_of(decode(body), len(body), layout.slots, layout.bytes_room)
        except TableError as error:
            raise KeeperError(f"rank {rank}: {error}") from error
        self.release()
        return Wanted(rank=rank, body=body, geometry=geometry)

    def make(self, wanted: Wanted) -> Held:
        """Make an arena, pre-faulted, on whichever thread; one at a time, as each looks for room.

        Nothing else is touched until it is taken up (`adopt`). Raises `KeeperError` when there is
        no room, before anything is allocated, or it cannot be made.
        """
        rank, geometry = wanted.rank, wanted.geometry
        reason = refusal(geometry.total, self.room(), self._settings)
        if reason is not None:
            raise KeeperError(f"rank {rank}: {reason}")
        try:
            fd, path = (
                (in_memory(wanted.body, geometry), "")
                if self._volume is None
                else self._volume.make(wanted.body, geometry)
            )
        except (PlaceError, ArenaError, OSError) as error:
            raise KeeperError(f"rank {rank}: {error}") from error
        held = Held(rank, fd, Arena(fd), path)
        try:
            held.arena.populate(write=True, threads=_FAULTING)
        except OSError as error:
            self._free([held])
            raise KeeperError(f"rank {rank}: {error}") from error
        return held

    def adopt(self, held: Held) -> Held:
        """Hold an arena that was made; the rank's older ones go once they are empty."""
        self._held.setdefault(held.rank, []).append(held)
        return held

    def take_over(self) -> list[str]:
        """Hold what a dead agent left there; return a sentence for each thing given up.

        Call it before anything else. From then on it is as if it had been held all along.
        """
        if self._volume is None:
            return []
        found, notes = self._volume.take_over()
        for one in found:
            rank = one.arena.table.rank
            self._held.setdefault(rank, []).append(Held(rank, one.fd, one.arena, one.path))
        return notes

    def saved(self, rank: int, version: Version, *, durable: bool, work: bool = True) -> Job | None:
        """Take note of a VALID slot; return the work on it, if any is wanted and it is there."""
        found = self.find(rank, version)
        self._look_for_complete()
        if found is None or not work:
            self.release()
            return None
        held, slot = found
        held.reading.append(slot.index)
        self.release()
        return Job(held=held, slot=slot, version=version, durable=durable)

    def done(self, job: Job) -> None:
        """Let go of a slot that a job has read."""
        job.held.reading.remove(job.slot.index)
        self.release()

    def find(self, rank: int, version: Version) -> tuple[Held, Slot] | None:
        """Return where a version of a rank lies VALID; the newest arena first."""
        for held in reversed(self._held.get(rank, [])):
            for slot in held.arena.slots:
                if slot.state is SlotState.VALID and slot.version == version:
                    return held, slot
        return None

    def _look_for_complete(self) -> None:
        if self.led and self.kept != self.world:
            return  # what other nodes have, only the master knows
        ranks = range(self.world) if self.kept == self.world else self.ranks
        if len(ranks) < self.kept:
            return  # a rank that has no arena yet has no version in common with the others
        versions = {rank: self.versions(rank) for rank in self._held}
        found = newest_complete(versions, ranks)
        if found is not None and found > (self.complete or _NEVER):
            self.complete = found

    def release(self) -> None:
        """Give back the slots, and free the arenas, that nobody needs any more."""
        self.listen()
        versions = {rank: self.versions(rank) for rank in self._held}
        hopeless = passed_over(versions, complete=self.complete) | self._passed_over
        for rank, arenas in self._held.items():
            for held in arenas:
                for index in releasable(
                    held.arena.views(),
                    complete=self.complete,
                    read=self._read(held),
                    hopeless=hopeless,
                ):
                    held.arena.slots[index].give_back(Move.RELEASE)
            outside = len(self.here) >= self.kept > 0 and rank not in self.here
            old = [held for held in (arenas if outside else arenas[:-1]) if _is_empty(held)]
            self._held[rank] = [held for held in arenas if held not in old]
            self._free(old)

    def _read(self, held: Held) -> frozenset[int]:
        """Return the slots that somebody reads, or is about to."""
        awaited = {
            slot.index
            for slot in held.arena.slots
            if self.asked and (held.rank, slot.version) in self.asked
        }
        return frozenset(held.reading) | awaited

    def note_complete(self, complete: Version | None, hopeless: frozenset[Version]) -> None:
        """Take the master's word of what all nodes have, and of what they never will."""
        if complete is not None and complete > (self.complete or _NEVER):
            self.complete = complete
        self._passed_over = hopeless
        self.release()

    def common(self, ranks: Iterable[int]) -> frozenset[Version]:
        """Return what is VALID on all of these ranks."""
        sets = [self.versions(rank) for rank in ranks]
        return frozenset(set.intersection(*sets)) if sets else frozenset()

    def saved_here(self) -> frozenset[Version]:
        """Return what is VALID on all ranks of the newest world that are here, and it saved itself.

        What a world of another size has left under the same numbers is not its own.
        """
        return frozenset(
            version
            for version in self.common(self.here)
            if all(
                place is not None and place[0].arena.table.world == self.world
                for place in (self.find(rank, version) for rank in self.here)
            )
        )

    def usable(self, ranks: Iterable[int], world: int) -> list[Version]:
        """Return what these ranks could start from, newest first.

        Saved by a world of this size, and all that each of them needs is in their images: of a
        tensor that a part of the world holds alike, another node may have stored a piece.
        """
        mine = list(ranks)
        found = []
        for version in self.common(mine):
            places = [self.find(rank, version) for rank in mine]
            tables = [place[0].arena.table for place in places if place is not None]
            if all(table.world == world for table in tables) and not lacking(tables):
                found.append(version)
        return sorted(found, reverse=True)

    def parts(self) -> dict[Version, tuple[int, tuple[int, ...]]]:
        """Return what lies in memory here, whoever saved it: world size and ranks by version."""
        found: dict[Version, tuple[int, tuple[int, ...]]] = {}
        for version in set().union(*(self.versions(rank) for rank in self._held)):
            places = self.places(version)
            sizes = {held.arena.table.world for held, _ in places}
            if len(sizes) == 1:
                found[version] = (sizes.pop(), tuple(held.rank for held, _ in places))
        return found

    def is_whole(self, versions: Iterable[Version]) -> bool:
        """Tell whether all that any world needs of each of these versions lies here.

        False where there are none: nobody is to count on a node that has nothing.
        """
        found = list(versions)
        return bool(found) and all(self._is_whole(tuple(self.places(one))) for one in found)

    def _is_whole(self, places: tuple[tuple[Held, Slot], ...]) -> bool:
        layouts = tuple(held.arena.layout for held, _ in places)
        if layouts not in self._wholes:
            self._wholes = {layouts: whole(held.arena.table for held, _ in places)}
        return self._wholes[layouts]

    def memory_version(self) -> Version | None:
        """Return the newest version that a world could resume from out of memory."""
        return self._resumable()

    def drop_damaged(self, version: Version) -> list[str]:
        """Empty the slots of a version whose bytes no longer have their hashes; say which."""
        notes = []
        for held, slot in self.places(version):
            if not was_hashed(slot):
                continue
            spans = held.arena.table.spans(tuple(slot.lengths))
            if hash_items(slot.image, spans) != tuple(slot.hashes):
                slot.give_back(Move.RELEASE)
                notes.append(
                    f"step {version.step} of rank {held.rank} was passed over: slot {slot.index} "
                    f"in memory is damaged"
                )
        return notes

    def drop_unlike(self, manifest: Manifest) -> None:
        """Empty the slots of a committed version that do not hold what was committed, bit for bit.

        Another world of the same number may have saved them, or they are damaged.
        """
        stored = {shard.table.rank: shard for shard in manifest.shards}
        for held, slot in self.places(manifest.version):
            shard, table = stored.get(held.rank), held.arena.table
            spans = table.spans(tuple(slot.lengths))
            if shard is None or shard.table != table or not _is_same(slot, shard, spans):
                slot.give_back(Move.RELEASE)

    def resume(self, *, memory: bool) -> Version | None:
        """Return the version to resume from out of memory, and empty what is newer or half done.

        Call it when no trainer of an older world is left. memory: False: the world resumes from
        storage, and whatever is in memory is older or of no use.
        """
        self._look_for_complete()
        version = self._resumable() if memory else None
        self.resume_from(version)
        return version

    def resume_from(self, version: Version | None) -> None:
        """Empty what is newer than the version in memory that a world resumes from, or half done.

        None: it resumes from storage, or begins. Call it when no trainer of an older world is left.
        """
        for arenas in self._held.values():
            for held in arenas:
                for index in outdated(held.arena.views(), resume=version):
                    slot = held.arena.slots[index]
                    valid = slot.state is SlotState.VALID
                    slot.give_back(Move.RELEASE if valid else Move.ABANDON)
        self.complete, self._passed_over = version, frozenset()
        self.release()  # what is older: a keeper that died, or a lost word, may have left it

    def _resumable(self) -> Version | None:
        """Return the newest version of a whole world that it saved itself, of any size."""
        sizes = {held.arena.table.world for arenas in self._held.values() for held in arenas}
        versions = {rank: self.versions(rank) for rank in self._held}
        found = [
            newest
            for world in sizes
            if set(range(world)) <= self._held.keys()
            and (newest := newest_complete(versions, range(world))) is not None
            and self._of_world(newest, world)
        ]
        return max(found, default=None)

    def _of_world(self, version: Version, world: int) -> bool:
        places = [self.find(rank, version) for rank in range(world)]
        return all(place is not None and place[0].arena.table.world == world for place in places)

    def places(self, version: Version) -> list[tuple[Held, Slot]]:
        """Return where each rank's part of a version lies."""
        found = (self.find(rank, version) for rank in self.ranks)
        return [place for place in found if place is not None]

    def close(self) -> None:
        """Free everything, files too."""
        for arenas in self._held.values():
            self._free(arenas)
        self._held.clear()
        if self._volume is not None:
            self._volume.close()

    def _free(self, arenas: Iterable[Held]) -> None:
        for held in arenas:
            if self._volume is not None:
                self._volume.remove(held.path)
            held.arena.close()
            os.close(held.fd)


def _is_empty(held: Held) -> bool:
    return not held.reading and all(slot.state is SlotState.EMPTY for slot in held.arena.slots)


def _is_same(slot: Slot, shard: Shard, spans: list[tuple[int, int]]) -> bool:
    """Tell whether a slot has the bytes of a committed shard, its tail included."""
    if tuple(slot.lengths) != shard.lengths:
        return False
    hashes = hash_items(slot.image, spans)
    return hashes == shard.hashes


def was_hashed(slot: Slot) -> bool:
    """Tell whether the slot's hash table belongs to its content."""
    return bool(slot.words[SlotWord.HASHED] == slot.words[SlotWord.SEQUENCE])
