"""Parts of a version between nodes: read from other nodes' memory, and lent to other nodes.

Belongs here: of reading, the items read so far, the check of every hash, and the threads that wait
for other nodes; of lending, the description of a slot.

A part that was read is kept in an arena like the rank's own, but sparse: items that no rank asked
for are holes and take no memory. Values that are no tensors are small, and are read with the
description.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from holdfast.flash.memory.arena import Arena, ArenaError, RankArena, geometry_of, in_memory
from holdfast.flash.memory.hashes import hash64
from holdfast.flash.memory.memory_budget import Room, refusal
from holdfast.flash.memory.shard_table import TableError, decode
from holdfast.flash.memory.slots import SlotState, Version
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.server.worker_thread import WorkerThread
from holdfast.flash.storage.writer import hashed
from holdfast_wire.messages import PartSource

Range = tuple[int, int]
"""Offset in the image, and length, bytes."""
_MOST_RANGE: Final = 256 * 2**20
"""Bytes of one read: the most that a lost connection costs."""


class GatherError(Exception):
    """Another node's part is missing, or differs from its description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """Description of a part: its shard table, the lengths and hashes of its items."""

    table: bytes
    """Shard table, as its rank wrote it."""
    bytes_room: int
    lengths: tuple[int, ...]
    hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartPlace:
    """Place of a part in another agent's memory, during the round of this number."""

    address: str
    number: int
    version: Version
    rank: int


class Peers(Protocol):
    """Connection to other agents; called from threads of their own, and blocks."""

    def describe(self, part: PartPlace) -> Described:
        """Return the description of a part; raises `GatherError`."""

    def read(self, part: PartPlace, ranges: Sequence[Range], into: memoryview) -> None:
        """Read ranges of an image to the same places of `into`; raises `GatherError`."""


@dataclass(eq=False, slots=True)
class Lent:
    """One part of another node, with the items read so far."""

    part: PartPlace
    node_rank: int
    """Rank of that node."""
    held: RankArena
    """Arena like the rank's own, with the hashes that its items must have."""
    spans: list[Range]
    there: set[int] = field(default_factory=set)
    """Indices of the items that were read and match their hashes."""


class Gatherer:
    """Reads of one round from the memory of other nodes."""

    def __init__(self, peers: Peers, room: Callable[[], Room]) -> None:
        self._peers, self._room = peers, room
        self._number, self._version = 0, Version(0, 0)
        self.lent: dict[int, Lent] = {}
        """Parts by rank."""
        self._lock = threading.Lock()
        self._refused: dict[Version, str] = {}
        """Versions that failed after their description, with the reason: not to be chosen again."""

    def has(self, number: int, version: Version) -> bool:
        """Return True if a round's parts of a version are described."""
        return bool(self.lent) and (self._number, self._version) == (number, version)

    def describe(self, number: int, version: Version, sources: Iterable[PartSource]) -> None:
        """Fetch the descriptions of the parts, and read their values that are no tensors.

        Raises `GatherError`; earlier parts are given up in any case.
        """
        with self._lock:
            self._give_up()
            if version in self._refused:
                raise GatherError(self._refused[version])
            self._refused = {one: why for one, why in self._refused.items() if one > version}
            self._number, self._version = number, version
            for source in sources:
                for rank in source.ranks:
                    self._borrow(source, rank)

    def _borrow(self, source: PartSource, rank: int) -> None:
        part = PartPlace(source.address, self._number, self._version, rank)
        found = self._peers.describe(part)
        try:
            table = decode(found.table)
            geometry = geometry_of(table, len(found.table), 1, found.bytes_room)
            fd = in_memory(found.table, geometry)
            held = RankArena(Arena(fd), fd)
        except (TableError, ArenaError, OSError) as error:
            raise GatherError(f"rank {rank} of node {source.node_rank}: {error}") from error
        if (table.rank, len(found.hashes), len(found.lengths)) != (
            rank,
            table.count,
            len(table.byte_items),
        ):
            held.close()
            raise GatherError(f"node {source.node_rank} describes another part than rank {rank}'s")
        slot = held.arena.slots[0]
        slot.begin_write(self._version)
        slot.commit(found.lengths)
        slot.store_hashes(found.hashes)
        self.lent[rank] = lent = Lent(part, source.node_rank, held, slot.spans)
        self._read(lent, range(len(table.tensors), table.count))

    def fetch(self, items: Iterable[tuple[int, int]]) -> None:
        """Read items, by rank and index in its table, that were not read yet.

        Raises `GatherError` if an item cannot be read, has another hash, or does not fit into
        memory.
        """
        wanted: dict[int, list[int]] = {}
        for rank, index in items:
            wanted.setdefault(rank, []).append(index)
        with self._lock:
            try:
                self._look_for_room(wanted)
                for rank, indices in wanted.items():
                    self._read(self._known(rank, indices), indices)
            except GatherError as error:
                self._refused[self._version] = str(error)
                raise

    def _known(self, rank: int, indices: Sequence[int]) -> Lent:
        lent = self.lent.get(rank)
        if lent is None or not all(0 <= index < len(lent.spans) for index in indices):
            raise GatherError(f"rank {rank} of step {self._version.step} is not lent")
        return lent

    def _look_for_room(self, wanted: dict[int, list[int]]) -> None:
        size = sum(
            lent.spans[index][1]
            for rank, indices in wanted.items()
            for lent in [self._known(rank, indices)]
            for index in set(indices) - lent.there
        )
        reason = refusal(size, self._room()) if size else None
        if reason is not None:
            raise GatherError(f"parts of other nodes: {reason}")

    def _read(self, lent: Lent, indices: Iterable[int]) -> None:
        slot = lent.held.arena.slots[0]
        for batch in _batches(sorted(set(indices) - lent.there), lent.spans):
            ranges = _joined([lent.spans[index] for index in batch])
            self._peers.read(lent.part, ranges, slot.image)
            for index in batch:
                begin, length = lent.spans[index]
                if hash64(slot.image[begin : begin + length]) != slot.hashes[index]:
                    name = lent.held.arena.table.items[index].name
                    raise GatherError(
                        f"{name} of rank {lent.held.rank} on node {lent.node_rank} is damaged"
                    )
                lent.there.add(index)

    def close(self) -> None:
        """Give all parts up; ranks keep the memory that they map."""
        with self._lock:
            self._give_up()

    def _give_up(self) -> None:
        for lent in self.lent.values():
            lent.held.close()
        self.lent = {}


def _batches(indices: Sequence[int], spans: Sequence[Range]) -> Iterable[list[int]]:
    """Split items into batches of one read each."""
    batch: list[int] = []
    size = 0
    for index in indices:
        if batch and size + spans[index][1] > _MOST_RANGE:
            yield batch
            batch, size = [], 0
        batch.append(index)
        size += spans[index][1]
    if batch:
        yield batch


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Join adjacent ranges; the ranges are sorted by their offsets."""
    found: list[Range] = []
    for begin, length in ranges:
        if found and sum(found[-1]) == begin:
            found[-1] = (found[-1][0], found[-1][1] + length)
        else:
            found.append((begin, length))
    return found


def describe(
    arenas: ArenaStore,
    worker: WorkerThread,
    version: Version,
    rank: int,
    taken: Callable[[Described | None], None],
) -> None:
    """Describe a part of this node to another one, once it has hashes; None: it is not here."""
    job = arenas.saved(rank, version)
    if job is None:
        taken(None)
        return
    arena, slot = job.held.arena, job.slot

    def look() -> None:
        there = slot.state is SlotState.VALID and slot.version == version
        if there and not slot.is_hashed:
            hashed(job)

    def tell(*_: object) -> None:
        described = Described(
            table=arena.body,
            bytes_room=arena.geometry.bytes_room,
            lengths=tuple(slot.lengths),
            hashes=tuple(slot.hashes) if slot.is_hashed else (),
        )
        arenas.done(job)
        taken(described)

    worker.hand_out(f"hashing step {version.step}", look, tell)
