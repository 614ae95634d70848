"""The keeper: sees to it that there are arenas for a node's ranks, and what is saved is kept.

Belongs here: making, taking over and freeing arenas, and which slots are given back. Does not
belong here: where a version lies (`holdings`), what it could serve (`offering`).

One object, used by one thread: an agent's, or the process that stands in for an agent
(`keeping`). It owns every VALID slot. Slow work (hashing, writing) is handed out as `Job`s, which
any thread may run; their outcome comes back through `done`. No torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
from holdfast.flash.holdings import Held, Holdings
from holdfast.flash.inheritance import Place, PlaceError
from holdfast.flash.link import Hello, Layout
from holdfast.flash.offering import Offer
from holdfast.flash.room import memory_left
from holdfast.flash.table import TableError, decode

_NEVER: Final = Version(-1, -1)
_FAULTING: Final = min(4, max(1, len(os.sched_getaffinity(0)) // 2))
"""Threads that make an arena: ranks want their cores."""


class KeeperError(Exception):
    """A trainer asked for what it cannot have; the text is for its user."""


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


class Keeper(Holdings):
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
        super().__init__()
        self.led = led
        self._volume = volume
        self._lineage = -1
        self.here: set[int] = set()
        """Ranks of the newest world that have said hello."""
        self._passed_over: frozenset[Version] = frozenset()
        self.room = room
        self._settings = settings
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
        self.offer = Offer(self)
        """What the versions here could serve."""
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
            held.arena.populate(write=True, threads=_FAULTING, enlarge=True)
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

    def resume(self, *, memory: bool) -> Version | None:
        """Return the version to resume from out of memory, and empty what is newer or half done.

        Call it when no trainer of an older world is left. memory: False: the world resumes from
        storage, and whatever is in memory is older or of no use.
        """
        self._look_for_complete()
        version = self.offer.newest() if memory else None
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
