"""Parts of a version that lie in the memory of other nodes: described first, then read as asked.

Belongs here: what a node has got of them so far, and that every byte has its hash. Does not belong
here: who has which part (the master knows), the network (`Peers`, which the agent provides), what
a rank needs of a part (`restoring`).

A part is lent as an arena like the rank's own would be, sparse: what nobody asked for is a hole and
takes no memory. Values that are no tensors are small, and are there from the beginning.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from holdfast.flash.arena import Arena, ArenaError, geometry_of, in_memory
from holdfast.flash.decide.room import Room, RoomSettings, refusal
from holdfast.flash.decide.slots import Version
from holdfast.flash.manifest import hash64
from holdfast.flash.table import TableError, decode

Range = tuple[int, int]
"""Begin in the image, and length, bytes."""
_MOST_RANGE: Final = 256 * 2**20
"""Bytes that are read at once: what a lost connection costs at most."""


class GatherError(Exception):
    """Another node's part cannot be had, or is not what it was said to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Another node whose memory has parts of a version."""

    node_rank: int
    address: str
    """Where its agent answers others, host:port."""
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a part consists of."""

    table: bytes
    """As its rank wrote it."""
    bytes_room: int
    lengths: tuple[int, ...]
    hashes: tuple[int, ...]


class Peers(Protocol):
    """The way to other agents; called from threads of their own, and blocks."""

    def describe(self, address: str, number: int, version: Version, rank: int) -> Described:
        """Return what a part consists of; raises `GatherError`. number: of the round."""

    def read(
        self,
        address: str,
        number: int,
        version: Version,
        rank: int,
        ranges: Sequence[Range],
        into: memoryview,
    ) -> None:
        """Read ranges of an image to the same places of `into`; raises `GatherError`."""


@dataclass(eq=False, slots=True)
class Lent:
    """One part, as far as it was read."""

    source: Source
    fd: int
    arena: Arena
    hashes: tuple[int, ...]
    spans: list[Range]
    there: set[int] = field(default_factory=set)
    """Indices of the items that are there and have their hashes."""


class Gatherer:
    """What one round of this node reads of other nodes."""

    def __init__(
        self, peers: Peers, room: Callable[[], Room], settings: RoomSettings | None = None
    ) -> None:
        """Take the way to the others, and what tells how much memory is left."""
        self._peers, self._room, self._settings = peers, room, settings or RoomSettings()
        self._number, self._version = 0, Version(0, 0)
        self.lent: dict[int, Lent] = {}
        """By rank."""
        self._lock = threading.Lock()
        self._refused: dict[Version, str] = {}
        """What could not be read although it was described: it would be chosen again and again."""

    def has(self, number: int, version: Version) -> bool:
        """Tell whether a round's parts of a version are described."""
        return bool(self.lent) and (self._number, self._version) == (number, version)

    def describe(self, number: int, version: Version, sources: Iterable[Source]) -> None:
        """Learn what the parts consist of, and read their values that are no tensors.

        Raises `GatherError`; what was lent before is given up in any case.
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

    def _borrow(self, source: Source, rank: int) -> None:
        found = self._peers.describe(source.address, self._number, self._version, rank)
        try:
            table = decode(found.table)
            geometry = geometry_of(table, len(found.table), 1, found.bytes_room)
            fd = in_memory(found.table, geometry)
            arena = Arena(fd)
        except (TableError, ArenaError, OSError) as error:
            raise GatherError(f"rank {rank} of node {source.node_rank}: {error}") from error
        if (table.rank, len(found.hashes), len(found.lengths)) != (
            rank,
            table.count,
            len(table.byte_items),
        ):
            arena.close()
            os.close(fd)
            raise GatherError(f"node {source.node_rank} describes another part than rank {rank}'s")
        slot = arena.slots[0]
        slot.begin_write(self._version, rank=rank, world=table.world, layout=arena.layout)
        slot.commit(found.lengths)
        lent = Lent(source, fd, arena, found.hashes, table.spans(found.lengths))
        self.lent[rank] = lent
        self._read(rank, lent, range(len(table.tensors), table.count))

    def fetch(self, items: Iterable[tuple[int, int]]) -> None:
        """Have items read, by rank and index in its table, that are not there yet.

        Raises `GatherError` when one cannot be had, has another hash, or does not fit into memory.
        """
        wanted: dict[int, list[int]] = {}
        for rank, index in items:
            wanted.setdefault(rank, []).append(index)
        with self._lock:
            try:
                self._look_for_room(wanted)
                for rank, indices in wanted.items():
                    self._read(rank, self._known(rank, indices), indices)
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
        reason = refusal(size, self._room(), self._settings) if size else None
        if reason is not None:
            raise GatherError(f"parts of other nodes: {reason}")

    def _read(self, rank: int, lent: Lent, indices: Iterable[int]) -> None:
        image = lent.arena.slots[0].image
        for batch in _batches(sorted(set(indices) - lent.there), lent.spans):
            ranges = _joined([lent.spans[index] for index in batch])
            source = lent.source
            self._peers.read(source.address, self._number, self._version, rank, ranges, image)
            for index in batch:
                begin, length = lent.spans[index]
                if hash64(image[begin : begin + length]) != lent.hashes[index]:
                    name = lent.arena.table.items[index].name
                    raise GatherError(
                        f"{name} of rank {rank} on node {source.node_rank} is damaged"
                    )
                lent.there.add(index)

    def close(self) -> None:
        """Give everything up; ranks keep what they have mapped."""
        with self._lock:
            self._give_up()

    def _give_up(self) -> None:
        for lent in self.lent.values():
            lent.arena.close()
            os.close(lent.fd)
        self.lent = {}


def _batches(indices: Sequence[int], spans: Sequence[Range]) -> Iterable[list[int]]:
    """Cut items into lots that are read at once."""
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
    """Join ranges that touch: they are in the order of their begins."""
    found: list[Range] = []
    for begin, length in ranges:
        if found and sum(found[-1]) == begin:
            found[-1] = (found[-1][0], found[-1][1] + length)
        else:
            found.append((begin, length))
    return found
