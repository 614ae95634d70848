"""The arena: one mapping of memory with the slots of one rank.

Belongs here: making an arena, mapping it, reading and storing words of headers. Does not belong
here: the allowed moves of a slot (`slots`), the content of a slot (`shard_table`), the requests of
trainers (`server.arena_store`). No torch.

    page 0   the arena's header (`ArenaWord`)
    page 1…  the shard table, as JSON
    slots    header page | lengths of byte items, hashes of items | image | tail

Words are aligned, of 8 bytes in native byte order. Each word has one writer.
"""

from __future__ import annotations

import enum
import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final

from holdfast.flash.memory.hashes import hash_items
from holdfast.flash.memory.mmap import Mapping
from holdfast.flash.memory.shard_table import ShardTable, TableError, decode, layout_id
from holdfast.flash.memory.slots import Move, Party, SlotState, SlotView, Version, after
from holdfast.page_layout import keep_order
from holdfast_wire.fd_messages import ARENA

PAGE: Final = 4096
MAGIC: Final = int.from_bytes(b"HFARENA1", "little")
SLOT_MAGIC: Final = int.from_bytes(b"HFSLOT01", "little")
FORMAT: Final = 2
JOB_AT: Final = 1024
"""Byte of the first page where the job's uid begins."""
MOST_JOB: Final = 256
"""Bytes that a job's uid may have."""
AGENT_WORDS: Final = 256
"""First word of a slot's header that the agent writes."""


class ArenaWord(enum.IntEnum):
    """Word numbers of an arena's first page; written once, before anybody else maps it."""

    MAGIC = 0
    FORMAT = 1
    SLOTS = 2
    SLOT_BYTES = 3
    FIRST_SLOT = 4
    TENSOR_BYTES = 5
    BYTES_ROOM = 6
    TAIL_BYTES = 7
    BYTE_ITEMS = 8
    ITEMS = 9
    TABLE_BYTES = 10
    TABLE_HASH = 11
    JOB_BYTES = 12
    """Bytes of the job's uid; 0: the arena lies in memory that no other job can see."""
    CHECK = 13
    """A hash of the words between MAGIC and this one, and of the job's uid."""


class SlotWord(enum.IntEnum):
    """Word numbers of a slot's header. Words below `AGENT_WORDS` are stored by its owner only.

    SEQUENCE is odd while the trainer writes. A reader that finds it changed discards what it read.
    """

    MAGIC = 0
    STATE = 1
    SEQUENCE = 2
    LINEAGE = 3
    STEP = 4
    RANK = 5
    WORLD = 6
    LAYOUT = 7
    BYTES_USED = 8
    PID = 9
    CHECK = 10
    """Hash of the words from SEQUENCE to PID and of the lengths. For a slot of a dead agent it is
    the only proof that the version in the header is the version that was written."""
    HASHED = AGENT_WORDS
    """SEQUENCE that the hash table belongs to; 0: none."""


BYTES_ROOM: Final = 64 * 1024
"""Bytes for all byte items of a rank together, unless its plan asks for more."""
SLOTS: Final = 3


class ArenaError(Exception):
    """An arena is foreign or damaged, or does not hold what was asked for."""


class UnfinishedError(ArenaError):
    """Leftover of an agent that died while it made the arena: no trainer was ever given it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes of an arena, bytes; and counts."""

    slots: int
    tensor_bytes: int
    bytes_room: int
    tail_bytes: int
    byte_items: int
    items: int
    table_bytes: int

    @property
    def first_slot(self) -> int:
        """Offset of the first slot in the mapping, bytes."""
        return PAGE + _pages(self.table_bytes)

    @property
    def image(self) -> int:
        """Offset of a slot's image from its header, bytes."""
        return PAGE + _pages(8 * (self.byte_items + self.items))

    @property
    def tail(self) -> int:
        """Offset of the tail from the image, bytes."""
        return self.tensor_bytes + self.bytes_room

    @property
    def slot_bytes(self) -> int:
        """Size of one slot, bytes."""
        return self.image + _pages(self.tail + self.tail_bytes)

    @property
    def total(self) -> int:
        """Size of the whole arena, bytes."""
        return self.first_slot + self.slots * self.slot_bytes


_SIZES: Final = {one.name: ArenaWord[one.name.upper()] for one in fields(Geometry)}
"""Field of a geometry → its word in the header."""


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


class Arena(Mapping):
    """One mapping of an arena, by its agent or by a trainer."""

    def __init__(self, fd: int) -> None:
        """Map the arena behind `fd`; the caller still owns `fd`.

        Raises `ArenaError` if there is no arena, it has another format, or its table is damaged;
        `UnfinishedError` if the arena was never finished.
        """
        if (size := os.fstat(fd).st_size) < PAGE:
            kind = ArenaError if size else UnfinishedError
            raise kind(f"descriptor {fd}: {size} bytes are no arena")
        super().__init__(fd)
        words = self.memory[:PAGE].cast("Q")
        if not words[ArenaWord.MAGIC]:
            raise UnfinishedError(f"descriptor {fd}: no arena yet")
        if words[ArenaWord.MAGIC] != MAGIC or words[ArenaWord.FORMAT] != FORMAT:
            raise ArenaError(
                f"descriptor {fd}: no arena of format {FORMAT} "
                f"(magic {words[ArenaWord.MAGIC]:#x}, format {words[ArenaWord.FORMAT]})"
            )
        self.geometry = Geometry(**{name: words[word] for name, word in _SIZES.items()})
        self.job = _job_in(words, self.memory, fd)
        """Uid of the job that the arena was made for; empty in memory that no other job can see."""
        if self.geometry.total != len(self.memory):
            raise ArenaError(f"descriptor {fd}: {len(self.memory)} bytes do not fit its header")
        self.body = self.memory[PAGE : PAGE + self.geometry.table_bytes].tobytes()
        self.layout = layout_id(self.body)
        if self.layout != words[ArenaWord.TABLE_HASH]:
            raise ArenaError(f"descriptor {fd}: the shard table does not match its hash")
        try:
            self.table = decode(self.body)
        except TableError as error:
            raise ArenaError(f"descriptor {fd}: {error}") from error
        self.slots = tuple(ArenaSlot(self, index) for index in range(self.geometry.slots))

    def views(self) -> list[SlotView]:
        """Return a view of each slot for the pure decisions (`slots`)."""
        return [slot.view() for slot in self.slots]

    def close(self) -> None:
        """Unmap; fails with BufferError while somebody still holds a view."""
        for slot in self.slots:
            slot.close()
        super().close()


class ArenaSlot:
    """One slot of a mapped arena."""

    def __init__(self, arena: Arena, index: int) -> None:
        geometry = arena.geometry
        self._table, self._layout = arena.table, arena.layout
        self.index = index
        self.begin = geometry.first_slot + index * geometry.slot_bytes
        self.words = arena.memory[self.begin : self.begin + PAGE].cast("Q")
        tables = self.begin + PAGE
        self.lengths = arena.memory[tables : tables + 8 * geometry.byte_items].cast("Q")
        """Lengths of the byte items, in the table's order."""
        tables += 8 * geometry.byte_items
        self.hashes = arena.memory[tables : tables + 8 * geometry.items].cast("Q")
        """Hashes of all items, stored by the agent."""
        self.image_begin = self.begin + geometry.image
        self.image = arena.memory[self.image_begin : self.begin + geometry.slot_bytes]

    @property
    def state(self) -> SlotState:
        """State of the slot; an unknown word reads as WRITING, which is never restored."""
        word = self.words[SlotWord.STATE]
        return SlotState(word) if word in (0, 1, 2) else SlotState.WRITING

    @property
    def version(self) -> Version:
        """Version of the slot's content."""
        return Version(self.words[SlotWord.LINEAGE], self.words[SlotWord.STEP])

    def view(self) -> SlotView:
        """Return the slot's header for the pure decisions, read under the sequence lock."""
        while True:
            sequence = self.words[SlotWord.SEQUENCE]
            keep_order()
            found = SlotView(index=self.index, state=self.state, version=self.version)
            keep_order()
            if sequence == self.words[SlotWord.SEQUENCE]:
                return found

    def begin_write(self, version: Version) -> None:
        """Take an EMPTY slot for writing; readers know from now on that its content changes."""
        state = after(self.state, Move.BEGIN, Party.TRAINER)
        words = self.words
        words[SlotWord.STATE] = state
        words[SlotWord.SEQUENCE] = (words[SlotWord.SEQUENCE] // 2) * 2 + 1
        keep_order()
        words[SlotWord.LINEAGE], words[SlotWord.STEP] = version.lineage, version.step
        words[SlotWord.RANK], words[SlotWord.WORLD] = self._table.rank, self._table.world
        words[SlotWord.LAYOUT], words[SlotWord.PID] = self._layout, os.getpid()
        words[SlotWord.MAGIC] = SLOT_MAGIC
        keep_order()

    def commit(self, lengths: Sequence[int]) -> None:
        """Hand the slot to the agent; all of its bytes must be stored before."""
        state = after(self.state, Move.COMMIT, Party.TRAINER)
        for index, length in enumerate(lengths):
            self.lengths[index] = length
        self.words[SlotWord.BYTES_USED] = sum(lengths)
        keep_order()
        self.words[SlotWord.SEQUENCE] += 1
        self.words[SlotWord.CHECK] = self._check()
        keep_order()
        self.words[SlotWord.STATE] = state

    def _check(self) -> int:
        words = self.words[SlotWord.SEQUENCE : SlotWord.CHECK]
        return layout_id(words.tobytes() + self.lengths.tobytes())

    @property
    def fault(self) -> str:
        """Fault in the header of a VALID slot; empty: none."""
        words = self.words
        if words[SlotWord.MAGIC] != SLOT_MAGIC or words[SlotWord.CHECK] != self._check():
            return "its header is damaged"
        found = tuple(words[SlotWord.RANK : SlotWord.LAYOUT + 1])
        right = (self._table.rank, self._table.world, self._layout)
        if words[SlotWord.SEQUENCE] % 2 or found != right:
            return "its header does not fit the arena"
        return ""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(begin, length) of each item in the image."""
        return self._table.spans(tuple(self.lengths))

    @property
    def is_hashed(self) -> bool:
        """True if the stored hashes belong to the content."""
        return bool(self.words[SlotWord.HASHED] == self.words[SlotWord.SEQUENCE])

    @property
    def is_as_hashed(self) -> bool:
        """True if the content has the stored hashes; while no rank trains."""
        return self.hash_image(training=False) == tuple(self.hashes)

    def hash_image(self, *, training: bool) -> tuple[int, ...]:
        """Return the hash of each item; see `hash_items`."""
        return hash_items(self.image, self.spans, training=training)

    def store_hashes(self, hashes: Sequence[int]) -> None:
        """Store the hashes of the content, on the agent's side."""
        for index, number in enumerate(hashes):
            self.hashes[index] = number
        self.words[SlotWord.HASHED] = self.words[SlotWord.SEQUENCE]

    def give_back(self, move: Move) -> None:
        """Empty the slot, on the agent's side: RELEASE a VALID one, ABANDON a dead trainer's."""
        self.words[SlotWord.STATE] = after(self.state, move, Party.AGENT)

    def close(self) -> None:
        """Release the views of the mapping."""
        for view in (self.words, self.lengths, self.hashes, self.image):
            view.release()


@dataclass(eq=False, slots=True)
class RankArena:
    """One arena of one rank, on the agent's side."""

    arena: Arena
    fd: int
    path: str = ""
    """Name of the arena in its backend; empty: in memory that no other process can find."""
    reading: list[int] = field(default_factory=list)
    """Indices of slots with a reader, once per reader."""
    proven: dict[int, int] = field(default_factory=dict)
    """Slot → SEQUENCE of a content that had its hashes a moment ago; for one verification."""

    @property
    def rank(self) -> int:
        """Rank that saves to it."""
        return self.arena.table.rank

    @property
    def is_empty(self) -> bool:
        """True if no slot holds anything, and none is being read."""
        return not self.reading and all(one.state is SlotState.EMPTY for one in self.arena.slots)

    def close(self) -> None:
        """Unmap it, and close the descriptor."""
        self.arena.close()
        os.close(self.fd)


def make(fd: int, table: bytes, geometry: Geometry, job: str = "") -> None:
    """Lay an arena out in the empty file `fd`; the caller still owns `fd`."""
    uid = job.encode()
    if len(uid) > MOST_JOB:
        raise ArenaError(f"job uid {job!r}: {len(uid)} bytes, of which an arena takes {MOST_JOB}")
    os.ftruncate(fd, geometry.total)
    with mmap.mmap(fd, geometry.first_slot) as memory:
        memory[PAGE : PAGE + len(table)] = table
        memory[JOB_AT : JOB_AT + len(uid)] = uid
        values = {
            ArenaWord.FORMAT: FORMAT,
            **{word: getattr(geometry, name) for name, word in _SIZES.items()},
            ArenaWord.SLOT_BYTES: geometry.slot_bytes,
            ArenaWord.FIRST_SLOT: geometry.first_slot,
            ArenaWord.TABLE_HASH: layout_id(table),
            ArenaWord.JOB_BYTES: len(uid),
        }
        with memoryview(memory) as whole, whole[:PAGE].cast("Q") as words:
            for word, value in values.items():
                words[word] = value
            words[ArenaWord.CHECK] = _page_check(words, uid)
            words[ArenaWord.MAGIC] = MAGIC  # last: a half-made arena must not pass for one


def _page_check(words: memoryview, job: bytes) -> int:
    return layout_id(words[ArenaWord.FORMAT : ArenaWord.CHECK].tobytes() + job)


def _job_in(words: memoryview, memory: memoryview, fd: int) -> str:
    """Return the job's uid, after a check that the first page is as it was written."""
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


def mapped(descriptors: tuple[int, ...]) -> dict[int, Arena]:
    """Map the arenas behind the descriptors, by inode, and close the descriptors."""
    arenas: dict[int, Arena] = {}
    try:
        for fd in descriptors:
            arena = arenas[os.fstat(fd).st_ino] = Arena(fd)
            arena.keep_from_children()
    finally:
        for fd in descriptors:
            os.close(fd)
    return arenas
