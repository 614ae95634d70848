"""The arena: its layout, its words, what a reader sees when its writer stops anywhere."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator

import pytest

from checkpoints.filled_arenas import grant, layout, save
from checkpoints.sample_shards import sample_shard
from holdfast.flash.memory.arena import (
    PAGE,
    Arena,
    ArenaError,
    ArenaWord,
    RankArena,
    geometry_of,
    in_memory,
)
from holdfast.flash.memory.memory_budget import Room
from holdfast.flash.memory.shard_table import TableError, decode, holes
from holdfast.flash.memory.slots import Move, SlotError, SlotState, Version
from holdfast.flash.server.arena_store import ArenaStore, ArenaStoreError, prove
from holdfast.flash.server.protocol import TrainerHello
from holdfast_wire.messages.spec import CheckpointPolicy

ROOM = 4096


@pytest.fixture
def memory() -> Iterator[int]:
    """The descriptor of an arena."""
    body = layout(world=1).table.encode()
    fd = in_memory(body, geometry_of(decode(body), len(body), 3, ROOM))
    yield fd
    os.close(fd)


@pytest.fixture
def arena(memory: int) -> Iterator[Arena]:
    """One, mapped."""
    found = Arena(memory)
    yield found
    found.close()


@pytest.fixture
def arenas() -> Iterator[ArenaStore]:
    """Those of a node with one rank."""
    found = ArenaStore()
    found.join(
        TrainerHello(
            rank=0, world=1, kept=1, lineage=1, root="", policy=CheckpointPolicy(keep_last=1)
        )
    )
    yield found
    found.close()


def _write(arena: Arena, index: int, step: int) -> None:
    slot = arena.slots[index]
    slot.begin_write(Version(1, step))
    slot.image[:] = bytes([step]) * len(slot.image)
    slot.commit([step])


def test_slots_neither_overlap_nor_touch_the_table(arena: Arena) -> None:
    """A write to one slot changes no other slot. Every image begins on a page."""
    for index, step in enumerate((1, 2, 3)):
        _write(arena, index, step)
    for slot, step in zip(arena.slots, (1, 2, 3), strict=True):
        assert bytes(slot.image) == bytes([step]) * len(slot.image)
        assert slot.version == Version(1, step)
        assert list(slot.lengths) == [step]
        assert slot.image_begin % PAGE == 0
    assert decode(arena.body) == arena.table


def test_a_slot_is_written_by_its_owner_only(arena: Arena) -> None:
    """A VALID slot refuses the trainer, an EMPTY one the agent."""
    _write(arena, 0, 1)
    with pytest.raises(SlotError, match="trainer may not begin a slot that is VALID"):
        arena.slots[0].begin_write(Version(1, 2))
    with pytest.raises(SlotError, match="agent may not release a slot that is EMPTY"):
        arena.slots[1].give_back(Move.RELEASE)


def test_a_memory_arena_cannot_change_its_size(memory: int) -> None:
    """It is sealed: a smaller one would kill its readers with SIGBUS."""
    with pytest.raises(PermissionError):
        os.ftruncate(memory, PAGE)


@pytest.mark.parametrize(
    "word", [ArenaWord.MAGIC, ArenaWord.FORMAT, ArenaWord.BYTES_ROOM, ArenaWord.TABLE_HASH]
)
def test_a_damaged_arena_is_refused(memory: int, word: ArenaWord) -> None:
    """A foreign magic, a newer format, a table that is not the one it was: all are named."""
    os.pwrite(memory, b"\x55" * 8, 8 * word)
    with pytest.raises(ArenaError, match="descriptor"):
        Arena(memory)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"{", "no JSON"),
        (b'{"format": 99}', "format=99"),
        (b'{"format": 1, "rank": 0}', "lacks or misstates"),
        (b"[]", "format="),
    ],
)
def test_a_table_that_is_none_is_refused(body: bytes, match: str) -> None:
    """The error says what is wrong with it."""
    with pytest.raises(TableError, match=match):
        decode(body)


def test_tables_with_a_hole_or_an_overlap_are_told() -> None:
    """A missing rank leaves a hole; the names and numbers are in the text."""
    tables = [sample_shard(rank, 3, random.Random(0))[0].table for rank in range(3)]
    assert holes(tables) == []
    assert holes(tables[:2]) == ["model.weight: 6000 of 9000 elements are there"]


def test_an_arena_without_room_is_refused_before_it_is_made() -> None:
    """The keeper asks for what is left first; nothing was allocated."""
    arenas = ArenaStore(room=lambda: Room(available=1, source="a test"))
    with pytest.raises(ArenaStoreError, match="are left by a test"):
        grant(arenas, 0, layout(world=1))
    assert arenas.held.ranks == []


def test_the_same_layout_gets_the_same_arena_and_another_one_a_new(arenas: ArenaStore) -> None:
    """A restarted trainer finds what was saved; with a new layout the old one stays until then."""
    first = grant(arenas, 0, layout(world=1))
    _write(first.arena, 0, 7)
    arenas.saved(0, Version(1, 7), work=False)
    assert grant(arenas, 0, layout(world=1)) is first
    second = grant(arenas, 0, layout())
    assert second is not first
    assert arenas.held.find(0, Version(1, 7)) == (first, first.arena.slots[0])


def test_a_step_of_an_abandoned_lineage_is_no_step_of_the_new_one(arenas: ArenaStore) -> None:
    """Two ranks with step 12 of different lineages have nothing in common but what is below."""
    for rank, lineage in ((0, 1), (1, 2)):
        slots = grant(arenas, rank, layout(rank)).arena.slots
        for slot, version in zip(slots, (Version(1, 10), Version(lineage, 12)), strict=False):
            slot.begin_write(version)
            slot.commit([0])
    assert arenas.held.common(range(2)) == {Version(1, 10)}
    assert arenas.held.common(range(3)) == arenas.held.common(()) == frozenset()


def test_an_old_arena_goes_once_a_newer_version_is_complete(arenas: ArenaStore) -> None:
    """It is freed by the first save to the new one, and not before."""
    first = grant(arenas, 0, layout(world=1))
    _write(first.arena, 0, 7)
    arenas.saved(0, Version(1, 7), work=False)
    bigger = layout(world=1, room=2 * ROOM)
    second = grant(arenas, 0, bigger)
    _write(second.arena, 0, 8)
    arenas.saved(0, Version(1, 8), work=False)
    assert arenas.complete == Version(1, 8)
    assert arenas.held.versions(0) == {Version(1, 8)}
    assert arenas.held.find(0, Version(1, 7)) is None


def test_a_damaged_slot_is_passed_over_in_memory(arenas: ArenaStore) -> None:
    """A bit that flips after hashing is found before anything is restored from the slot."""
    held = _hashed(arenas, 7)
    assert arenas.held.drop_damaged(Version(1, 7)) == []
    held.arena.slots[0].image[100] ^= 1
    (note,) = arenas.held.drop_damaged(Version(1, 7))
    assert "slot 0 in memory is damaged" in note
    assert held.arena.slots[0].state is SlotState.EMPTY


def _hashed(arenas: ArenaStore, step: int) -> RankArena:
    """Save a step in slot 0 and hash it, as after each save."""
    save(arenas, 0, step, world=1)
    return arenas.held.by_rank[0][-1]


def _look_ahead(arenas: ArenaStore) -> None:
    prove(ahead := arenas.newest_here())
    for job in ahead:
        arenas.done(job)


def test_a_slot_that_was_compared_ahead_is_compared_once(arenas: ArenaStore) -> None:
    """The next verification takes the result; the one after it compares again."""
    held = _hashed(arenas, 7)
    _look_ahead(arenas)
    held.arena.slots[0].image[100] ^= 1  # shows whether somebody looks
    assert arenas.held.drop_damaged(Version(1, 7)) == []
    assert len(arenas.held.drop_damaged(Version(1, 7))) == 1


def test_damage_that_is_seen_ahead_is_left_to_the_verification(arenas: ArenaStore) -> None:
    """A trainer may own the slot by then: only the verification empties one."""
    held = _hashed(arenas, 7)
    held.arena.slots[0].image[100] ^= 1
    _look_ahead(arenas)
    assert held.arena.slots[0].state is SlotState.VALID
    assert len(arenas.held.drop_damaged(Version(1, 7))) == 1


def test_a_slot_that_was_written_again_is_compared_again(arenas: ArenaStore) -> None:
    """What was compared ahead was another content, under another sequence number."""
    held = _hashed(arenas, 7)
    _look_ahead(arenas)
    held.arena.slots[0].give_back(Move.RELEASE)
    held = _hashed(arenas, 8)
    held.arena.slots[0].image[100] ^= 1
    assert len(arenas.held.drop_damaged(Version(1, 8))) == 1


def test_a_slot_stays_while_it_is_compared_ahead(arenas: ArenaStore) -> None:
    """A newer complete version gives it back only after the comparison."""
    held = _hashed(arenas, 7)
    (job,) = arenas.newest_here()
    _write(held.arena, 1, 8)
    arenas.saved(0, Version(1, 8), work=False)
    assert arenas.held.versions(0) == {Version(1, 7), Version(1, 8)}
    arenas.done(job)
    assert arenas.held.versions(0) == {Version(1, 8)}


def test_an_arena_that_cannot_be_faulted_in_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor is closed, and the trainer hears why."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    arenas = ArenaStore()
    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    with monkeypatch.context() as broken:
        broken.setattr(Arena, "fault_in", fail)
        with pytest.raises(ArenaStoreError, match=r"rank 0: .*Cannot allocate memory"):
            grant(arenas, 0, layout(world=1))
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
    assert arenas.held.ranks == []
    arenas.close()
