"""The arena: one mapping of memory with the slots of one rank.

Here belong making it, mapping it, and reading or storing words of headers. Which move is allowed
is `decide.slots`, what lies in a slot `table`, who asks for an arena `keeper`. No torch.

    page 0   what this arena is
    page 1…  the shard table, as JSON
    slots    header page | lengths of byte items, hashes of items | image | tail
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.flash.decide.slots import Move, Party, SlotState, SlotView, Version, after
from holdfast.flash.header import (
    FORMAT,
    JOB_AT,
    MAGIC,
    MOST_JOB,
    PAGE,
    SLOT_MAGIC,
    ArenaWord,
    SlotWord,
)
from holdfast.flash.mapping import Mapping
from holdfast.flash.table import ShardTable, TableError, decode, layout_id
from holdfast.layout import NEEDS_FENCE, fence
from holdfast_wire.descriptors import ARENA

BYTES_ROOM: Final = 64 * 1024
"""Bytes that a rank's byte items may have together unless its plan asks for more."""
SLOTS: Final = 3


class ArenaError(Exception):
    """An arena is foreign, damaged, or does not hold what is asked of it."""


class UnfinishedError(ArenaError):
    """Whoever made the arena died before it was one: no trainer was ever given it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes of an arena; all in bytes but the counts."""

    slots: int
    tensor_bytes: int
    bytes_room: int
    tail_bytes: int
    byte_items: int
    items: int
    table_bytes: int

    @property
    def first_slot(self) -> int:
        """Where the slots begin."""
        return PAGE + _pages(self.table_bytes)

    @property
    def image(self) -> int:
        """Where a slot's image begins, from its header."""
        return PAGE + _pages(8 * (self.byte_items + self.items))

    @property
    def tail(self) -> int:
        """Where the tail begins, from the image."""
        return self.tensor_bytes + self.bytes_room

    @property
    def slot_bytes(self) -> int:
        """One slot."""
        return self.image + _pages(self.tail + self.tail_bytes)

    @property
    def total(self) -> int:
        """The whole arena."""
        return self.first_slot + self.slots * self.slot_bytes


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def geometry_of(table: ShardTable, table_bytes: int, slots: int, bytes_room: int) -> Geometry:
    """Return the arena that images of `table` need."""
    tail = [item.at + item.length for item in table.tensors if item.tail]
    begin = table.tensor_bytes + bytes_room
    return Geometry(
        slots=slots,
        tensor_bytes=table.tensor_bytes,
        bytes_room=bytes_room,
        tail_bytes=max(tail, default=begin) - begin,
        byte_items=len(table.byte_items),
        items=table.count,
        table_bytes=table_bytes,
    )


class Arena:
    """One mapping of an arena, by its agent or by a trainer."""

    def __init__(self, fd: int) -> None:
        """Map the arena behind `fd`, which stays the caller's.

        Raises `ArenaError` when it is none, is of another format, or its table is damaged;
        `UnfinishedError` when it was never finished.
        """
        if (size := os.fstat(fd).st_size) < PAGE:
            kind = ArenaError if size else UnfinishedError
            raise kind(f"descriptor {fd}: {size} bytes are no arena")
        self._map = Mapping(fd)
        self._bytes = self._map.memory
        words = self._bytes[:PAGE].cast("Q")
        if not words[ArenaWord.MAGIC]:
            raise UnfinishedError(f"descriptor {fd}: no arena yet")
        if words[ArenaWord.MAGIC] != MAGIC or words[ArenaWord.FORMAT] != FORMAT:
            raise ArenaError(
                f"descriptor {fd}: no arena of format {FORMAT} "
                f"(magic {words[ArenaWord.MAGIC]:#x}, format {words[ArenaWord.FORMAT]})"
            )
        self.geometry = Geometry(
            slots=words[ArenaWord.SLOTS],
            tensor_bytes=words[ArenaWord.TENSOR_BYTES],
            bytes_room=words[ArenaWord.BYTES_ROOM],
            tail_bytes=words[ArenaWord.TAIL_BYTES],
            byte_items=words[ArenaWord.BYTE_ITEMS],
            items=words[ArenaWord.ITEMS],
            table_bytes=words[ArenaWord.TABLE_BYTES],
        )
        self.job = _job_in(words, self._bytes, fd)
        """Uid of the job that it was made for; empty in memory that no other job can see."""
        if self.geometry.total != len(self._bytes):
            raise ArenaError(f"descriptor {fd}: {len(self._bytes)} bytes do not fit its header")
        self.body = self._bytes[PAGE : PAGE + self.geometry.table_bytes].tobytes()
        self.layout = layout_id(self.body)
        if self.layout != words[ArenaWord.TABLE_HASH]:
            raise ArenaError(f"descriptor {fd}: the shard table does not match its hash")
        try:
            self.table = decode(self.body)
        except TableError as error:
            raise ArenaError(f"descriptor {fd}: {error}") from error
        self.slots = tuple(Slot(self, index) for index in range(self.geometry.slots))

    @property
    def address(self) -> int:
        """Where the mapping begins in this process."""
        return self._map.address

    @property
    def memory(self) -> memoryview:
        """All bytes."""
        return self._bytes

    def views(self) -> list[SlotView]:
        """Return all slots as the decisions see them."""
        return [slot.view() for slot in self.slots]

    def keep_from_children(self) -> None:
        """Leave the mapping out of forked processes: a data loader's child must not pin it."""
        self._map.keep_from_children()

    def populate(self, *, write: bool, threads: int = 1, enlarge: bool = False) -> None:
        """Fault all pages in, so that the first copy does not; other threads run meanwhile.

        `enlarge`: who makes the arena has it in large pages, where the kernel gives them.
        """
        if enlarge:
            self._map.enlarge(threads=threads)
        self._map.fault_in(write=write, threads=threads)

    def close(self) -> None:
        """Unmap; fails with BufferError while somebody still holds a view."""
        for slot in self.slots:
            slot.close()
        self._map.close()


class Slot:
    """One slot of a mapped arena."""

    def __init__(self, arena: Arena, index: int) -> None:
        """Take the slot `index`; `Arena` makes these."""
        geometry = arena.geometry
        self.index = index
        self.begin = geometry.first_slot + index * geometry.slot_bytes
        self.words = arena.memory[self.begin : self.begin + PAGE].cast("Q")
        tables = self.begin + PAGE
        self.lengths = arena.memory[tables : tables + 8 * geometry.byte_items].cast("Q")
        """Of the byte items, in the table's order."""
        tables += 8 * geometry.byte_items
        self.hashes = arena.memory[tables : tables + 8 * geometry.items].cast("Q")
        """Of all items, stored by the agent."""
        self.image_begin = self.begin + geometry.image
        self.image = arena.memory[self.image_begin : self.begin + geometry.slot_bytes]

    @property
    def state(self) -> SlotState:
        """Where it stands; a word that means nothing reads as WRITING, which nobody restores."""
        word = self.words[SlotWord.STATE]
        return SlotState(word) if word in (0, 1, 2) else SlotState.WRITING

    @property
    def version(self) -> Version:
        """Of its content."""
        return Version(self.words[SlotWord.LINEAGE], self.words[SlotWord.STEP])

    def view(self) -> SlotView:
        """Return what the decisions see, read under the sequence lock."""
        while True:
            sequence = self.words[SlotWord.SEQUENCE]
            if NEEDS_FENCE:
                fence()
            found = SlotView(index=self.index, state=self.state, version=self.version)
            if NEEDS_FENCE:
                fence()
            if sequence == self.words[SlotWord.SEQUENCE]:
                return found

    def begin_write(self, version: Version, *, rank: int, world: int, layout: int) -> None:
        """Take an EMPTY slot for writing; from here on a reader knows its content is in motion."""
        state = after(self.state, Move.BEGIN, Party.TRAINER)
        words = self.words
        words[SlotWord.STATE] = state
        words[SlotWord.SEQUENCE] = (words[SlotWord.SEQUENCE] // 2) * 2 + 1
        if NEEDS_FENCE:
            fence()
        words[SlotWord.LINEAGE], words[SlotWord.STEP] = version.lineage, version.step
        words[SlotWord.RANK], words[SlotWord.WORLD] = rank, world
        words[SlotWord.LAYOUT], words[SlotWord.PID] = layout, os.getpid()
        words[SlotWord.MAGIC] = SLOT_MAGIC
        if NEEDS_FENCE:
            fence()

    def commit(self, lengths: Sequence[int]) -> None:
        """Hand the slot to the agent; every byte of it was stored before."""
        state = after(self.state, Move.COMMIT, Party.TRAINER)
        for index, length in enumerate(lengths):
            self.lengths[index] = length
        self.words[SlotWord.BYTES_USED] = sum(lengths)
        if NEEDS_FENCE:
            fence()
        self.words[SlotWord.SEQUENCE] += 1
        self.words[SlotWord.CHECK] = self._check()
        if NEEDS_FENCE:
            fence()
        self.words[SlotWord.STATE] = state

    def _check(self) -> int:
        words = self.words[SlotWord.SEQUENCE : SlotWord.CHECK]
        return layout_id(words.tobytes() + self.lengths.tobytes())

    def fault(self, table: ShardTable, layout: int) -> str:
        """Return what is wrong with the header of a VALID slot; empty: nothing."""
        words = self.words
        if words[SlotWord.MAGIC] != SLOT_MAGIC or words[SlotWord.CHECK] != self._check():
            return "its header is damaged"
        found = tuple(words[SlotWord.RANK : SlotWord.LAYOUT + 1])
        if words[SlotWord.SEQUENCE] % 2 or found != (table.rank, table.world, layout):
            return "its header does not fit the arena"
        return ""

    def give_back(self, move: Move) -> None:
        """Empty the slot, on the agent's side: RELEASE a VALID one, ABANDON a dead trainer's."""
        self.words[SlotWord.STATE] = after(self.state, move, Party.AGENT)

    def changed_since(self, sequence: int) -> bool:
        """Tell a reader without ownership whether what it read since `sequence` is void."""
        if NEEDS_FENCE:
            fence()
        return bool(self.words[SlotWord.SEQUENCE] != sequence or sequence % 2)

    def close(self) -> None:
        """Let the views of the mapping go."""
        for view in (self.words, self.lengths, self.hashes, self.image):
            view.release()


def make(fd: int, table: bytes, geometry: Geometry, job: str = "") -> None:
    """Lay an arena out in the file `fd`, which is empty and stays the caller's."""
    uid = job.encode()
    if len(uid) > MOST_JOB:
        raise ArenaError(f"job uid {job!r}: {len(uid)} bytes, of which an arena takes {MOST_JOB}")
    os.ftruncate(fd, geometry.total)
    with mmap.mmap(fd, geometry.first_slot) as memory:
        memory[PAGE : PAGE + len(table)] = table
        memory[JOB_AT : JOB_AT + len(uid)] = uid
        values = {
            ArenaWord.FORMAT: FORMAT,
            ArenaWord.SLOTS: geometry.slots,
            ArenaWord.SLOT_BYTES: geometry.slot_bytes,
            ArenaWord.FIRST_SLOT: geometry.first_slot,
            ArenaWord.TENSOR_BYTES: geometry.tensor_bytes,
            ArenaWord.BYTES_ROOM: geometry.bytes_room,
            ArenaWord.TAIL_BYTES: geometry.tail_bytes,
            ArenaWord.BYTE_ITEMS: geometry.byte_items,
            ArenaWord.ITEMS: geometry.items,
            ArenaWord.TABLE_BYTES: geometry.table_bytes,
            ArenaWord.TABLE_HASH: layout_id(table),
            ArenaWord.JOB_BYTES: len(uid),
        }
        with memoryview(memory) as whole, whole[:PAGE].cast("Q") as words:
            for word, value in values.items():
                words[word] = value
            words[ArenaWord.CHECK] = _page_check(words, uid)
            words[ArenaWord.MAGIC] = MAGIC  # last: half an arena is none


def _page_check(words: memoryview, job: bytes) -> int:
    return layout_id(words[ArenaWord.FORMAT : ArenaWord.CHECK].tobytes() + job)


def _job_in(words: memoryview, memory: memoryview, fd: int) -> str:
    """Return the job's uid, once the first page is known to be as it was written."""
    size = words[ArenaWord.JOB_BYTES]
    uid = memory[JOB_AT : JOB_AT + min(size, MOST_JOB)].tobytes()
    if size > MOST_JOB or words[ArenaWord.CHECK] != _page_check(words, uid):
        raise ArenaError(f"descriptor {fd}: its first page is damaged")
    return uid.decode()


def in_memory(table: bytes, geometry: Geometry, job: str = "") -> int:
    """Return the descriptor of a new memfd arena, sealed against another size."""
    fd = os.memfd_create(ARENA, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        make(fd, table, geometry, job)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd
