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

from holdfast.flash.arena import Arena, ArenaError, Slot, geometry_of, in_memory
from holdfast.flash.commit import unique
from holdfast.flash.decide.room import Room, RoomSettings, refusal
from holdfast.flash.decide.slots import (
    Move,
    SlotState,
    Version,
    newest_complete,
    outdated,
    releasable,
)
from holdfast.flash.header import SlotWord
from holdfast.flash.link import Hello, Layout
from holdfast.flash.manifest import hash_items
from holdfast.flash.room import memory_left
from holdfast.flash.table import TableError, decode

_NEVER: Final = Version(-1, -1)


class KeeperError(Exception):
    """A trainer asked for what it cannot have; the text is for its user."""


@dataclass(eq=False, slots=True)
class Held:
    """One arena of one rank."""

    rank: int
    fd: int
    arena: Arena
    reading: set[int] = field(default_factory=set)
    """Slots that a job reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work on one VALID slot."""

    held: Held
    slot: Slot
    version: Version
    durable: bool


class Keeper:
    """Arenas by rank, and which of their versions are complete."""

    def __init__(
        self,
        room: Callable[[], Room] = memory_left,
        settings: RoomSettings = RoomSettings(),  # noqa: B008 - frozen
    ) -> None:
        """Take the source of the memory that is left."""
        self._room = room
        self._settings = settings
        self._held: dict[int, list[Held]] = {}
        self._world = 0
        self.kept = 0
        """Ranks that this keeper holds together, of those in the world."""
        self.token = unique()
        self.complete: Version | None = None
        """The newest version that is VALID on every rank here."""

    def join(self, hello: Hello) -> None:
        """Take note of a rank; a world of another size changes what complete means."""
        self._world, self.kept = hello.world, hello.kept

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
        body = layout.table.encode()
        for held in self._held.get(rank, ()):
            if held.arena.body == body and held.arena.geometry.bytes_room >= layout.bytes_room:
                return held
        try:
            geometry = geometry_of(decode(body), len(body), layout.slots, layout.bytes_room)
        except TableError as error:
            raise KeeperError(f"rank {rank}: {error}") from error
        self.release()
        reason = refusal(geometry.total, self._room(), self._settings)
        if reason is not None:
            raise KeeperError(f"rank {rank}: {reason}")
        held = self.adopt(rank, in_memory(body, geometry))
        held.arena.populate(write=True)
        return held

    def adopt(self, rank: int, fd: int) -> Held:
        """Hold an arena that is there already; its descriptor is the keeper's from now on.

        Raises `KeeperError` when it is damaged.
        """
        try:
            held = Held(rank, fd, Arena(fd))
        except ArenaError as error:
            os.close(fd)
            raise KeeperError(f"rank {rank}: {error}") from error
        self._held.setdefault(rank, []).append(held)
        return held

    def saved(self, rank: int, version: Version, *, durable: bool, work: bool = True) -> Job | None:
        """Take note of a VALID slot; return the work on it, if any is wanted and it is there."""
        found = self.find(rank, version)
        self._look_for_complete()
        if found is None or not work:
            self.release()
            return None
        held, slot = found
        held.reading.add(slot.index)
        self.release()
        return Job(held=held, slot=slot, version=version, durable=durable)

    def done(self, job: Job) -> None:
        """Let go of a slot that a job has read."""
        job.held.reading.discard(job.slot.index)
        self.release()

    def find(self, rank: int, version: Version) -> tuple[Held, Slot] | None:
        """Return where a version of a rank lies VALID; the newest arena first."""
        for held in reversed(self._held.get(rank, [])):
            for slot in held.arena.slots:
                if slot.state is SlotState.VALID and slot.version == version:
                    return held, slot
        return None

    def _look_for_complete(self) -> None:
        ranks = range(self._world) if self.kept == self._world else self.ranks
        if len(ranks) < self.kept:
            return  # a rank that has no arena yet has no version in common with the others
        versions = {rank: self.versions(rank) for rank in self._held}
        found = newest_complete(versions, ranks)
        if found is not None and found > (self.complete or _NEVER):
            self.complete = found

    def release(self) -> None:
        """Give back the slots, and free the arenas, that nobody needs any more."""
        for rank, arenas in self._held.items():
            for held in arenas:
                views = held.arena.views()
                for index in releasable(
                    views, complete=self.complete, read=frozenset(held.reading)
                ):
                    held.arena.slots[index].give_back(Move.RELEASE)
            outside = self._world and rank >= self._world
            old = [held for held in (arenas if outside else arenas[:-1]) if _is_empty(held)]
            self._held[rank] = [held for held in arenas if held not in old]
            _free(old)

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

    def resume(self, *, memory: bool) -> Version | None:
        """Return the version to resume from out of memory, and empty what is newer or half done.

        Call it when no trainer of an older world is left. memory: False: the world resumes from
        storage, and whatever is in memory is older or of no use.
        """
        self._look_for_complete()
        version = self._resumable() if memory else None
        for arenas in self._held.values():
            for held in arenas:
                for index in outdated(held.arena.views(), resume=version):
                    slot = held.arena.slots[index]
                    valid = slot.state is SlotState.VALID
                    slot.give_back(Move.RELEASE if valid else Move.ABANDON)
        self.complete = version
        return version

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
        """Free everything."""
        for arenas in self._held.values():
            _free(arenas)
        self._held.clear()


def _is_empty(held: Held) -> bool:
    return not held.reading and all(slot.state is SlotState.EMPTY for slot in held.arena.slots)


def _free(arenas: Iterable[Held]) -> None:
    for held in arenas:
        held.arena.close()
        os.close(held.fd)


def was_hashed(slot: Slot) -> bool:
    """Tell whether the slot's hash table belongs to its content."""
    return bool(slot.words[SlotWord.HASHED] == slot.words[SlotWord.SEQUENCE])
