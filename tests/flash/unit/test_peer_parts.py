"""Parts in the memory of other nodes: described, read, compared; real keepers, no network."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoints.led_nodes import (
    WAIT_SECONDS,
    Node,
    Rank,
    answered,
    connected,
    plan,
    rank_of,
    received,
    released,
    save_all,
    served,
)
from checkpoints.sample_shards import sample_shard
from holdfast.flash.memory.arena import Arena, ArenaSlot
from holdfast.flash.memory.memory_budget import Room
from holdfast.flash.memory.shard_table import ByteItem, ShardTable, TensorItem, encode, whole
from holdfast.flash.memory.slots import SlotState, Version
from holdfast.flash.server.peer_parts import Described, GatherError, PartPlace, describe
from holdfast.flash.server.protocol import (
    Fetch,
    Fetched,
    Granted,
    Layout,
    RequestRefused,
    Restore,
    RestoreStart,
)
from holdfast.flash.trainer.reshard import of_arenas
from holdfast_wire import messages
from holdfast_wire.messages import Tier
from holdfast_wire.tiers import offered

SAVED = Version(1, 7)
Olds = list[tuple[Node, Rank]]
New = tuple[Node, Any]


class Wire:
    """A stand-in for the network between a test's nodes."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.cut: set[str] = set()
        """Nodes that do not answer."""
        self.flip: Callable[[memoryview], None] = lambda _: None
        """Changes bytes on their way."""
        self.read_bytes = 0

    def describe(self, part: PartPlace) -> Described:
        """As an agent does over its network."""
        assert part.number >= 2
        found: Described | None = self._ask(
            part.address,
            lambda node, taken: describe(node.arenas, node.worker, part.version, part.rank, taken),
        )
        if found is None:
            raise GatherError(f"{part.address} has no part of rank {part.rank}")
        return found

    def read(self, part: PartPlace, ranges: Sequence[tuple[int, int]], into: memoryview) -> None:
        """As an agent does over its network."""
        address = part.address
        loan = self._ask(
            address, lambda node, taken: taken(node.arenas.saved(part.rank, part.version))
        )
        for begin, length in ranges:
            into[begin : begin + length] = loan.image[begin : begin + length]
            self.flip(into[begin : begin + length])
            self.read_bytes += length
        self.nodes[address].word(released())  # whatever else goes on there
        self.nodes[address].service.post(lambda: self.nodes[address].shared.arenas.done(loan))

    def _ask(self, address: str, word: Callable[[Any, Callable[[Any], None]], None]) -> Any:
        if address in self.cut:
            raise GatherError(f"{address} does not answer")
        answers, there = list[Any](), threading.Event()

        def taken(value: Any) -> None:
            answers.append(value)
            there.set()

        node = self.nodes[address]
        node.service.post(lambda: word(node.shared, taken))
        assert there.wait(WAIT_SECONDS)
        return answers[0]


@pytest.fixture
def wire() -> Wire:
    """The network of all nodes of a test."""
    return Wire()


@pytest.fixture
def olds(tmp_path: Path, wire: Wire) -> Iterator[Olds]:
    """Two nodes of one rank each, whose ranks have saved step 7 and are gone."""
    (tmp_path / "root").mkdir()
    with served(tmp_path, "n0", wire) as first, served(tmp_path, "n1", wire) as second:
        wire.nodes |= {"n0": first, "n1": second}
        found = []
        for number, node in enumerate((first, second)):
            with rank_of(node, tmp_path / "root", number) as rank:
                rank.save(SAVED)
                rank.comes_to_hold({7})
                node.word(released())
            found.append((node, rank))
        yield found


@contextmanager
def _newcomer(folder: Path, node: Node, number: int = 2) -> Iterator[Any]:
    """A trainer of round 2 on a node; it asks what to start from."""
    with connected(node, folder / "root", 2, 3, number) as rank:
        rank.link.send(Restore())
        yield rank.link


@pytest.fixture
def new(tmp_path: Path, wire: Wire, olds: Olds) -> Iterator[New]:
    """A third node, and the connection of its rank, which asks what to start from."""
    assert olds
    with served(tmp_path, "new", wire) as node, _newcomer(tmp_path, node) as link:
        yield node, link


def _answer(*ranks: int, go: bool = False, partial: bool = True) -> messages.RestorePlan:
    sources = tuple(
        messages.PartSource(node_rank=one, address=f"n{one}", ranks=(one,)) for one in ranks
    )
    return plan(version=SAVED, tier=Tier.MEMORY, go=go, sources=sources, partial=partial)


def _begun(node: Node, link: Any, *ranks: int) -> tuple[RestoreStart, list[Arena]]:
    """Let a node look and go; return what its rank is told, with the arenas."""
    node.master.hears("asks")
    node.word(_answer(*ranks), 2)
    assert node.master.hears("checked").error == ""
    node.word(_answer(*ranks, go=True), 2)
    origin, descriptors = answered(link, RestoreStart)
    arenas = [Arena(fd) for fd in descriptors]
    for fd in descriptors:
        os.close(fd)
    return origin, arenas


def _content(slot: ArenaSlot, table: ShardTable) -> list[bytes]:
    return [bytes(slot.image[a : a + n]) for a, n in table.spans(tuple(slot.lengths))]


def test_a_node_without_memory_reads_what_its_ranks_ask_for(
    wire: Wire, olds: Olds, new: New
) -> None:
    """Values come at once, a tensor when it is asked for; what nobody asks for takes no memory."""
    node, link = new
    origin, arenas = _begun(node, link, 0, 1)
    assert (origin.step, origin.ranks, origin.lent, origin.slots) == (7, (0, 1), (0, 1), (0, 0))
    tables = [arena.table for arena in arenas]
    wanted = [_content(_slot(rank), rank.arena.table) for _, rank in olds]
    found = [_content(arena.slots[0], arena.table) for arena in arenas]
    assert [one[1] for one in found] == [one[1] for one in wanted], "the values are there"
    assert not any(any(one[0]) for one in found), "the tensors are not"
    link.send(Fetch(items=((1, 0),)))
    received(link, Fetched)
    assert _content(arenas[1].slots[0], tables[1]) == wanted[1]
    assert not any(_content(arenas[0].slots[0], tables[0])[0])
    before = wire.read_bytes
    link.send(Fetch(items=((1, 0),)))
    received(link, Fetched)
    assert wire.read_bytes == before, "nothing is read twice"
    assert [image.lent for image in of_arenas(arenas, origin.slots, origin.lent)] == [True] * 2


def _slot(rank: Rank) -> ArenaSlot:
    return next(slot for slot in rank.arena.slots if slot.state is SlotState.VALID)


def test_a_node_with_a_part_reads_only_the_others(olds: Olds, tmp_path: Path) -> None:
    """Its own part is given as it lies there, in front of those that are lent."""
    node, _ = olds[0]
    with _newcomer(tmp_path, node) as link:
        origin, arenas = _begun(node, link, 1)
        assert (origin.ranks, origin.lent) == ((0, 1), (1,))
        assert [arena.table.rank for arena in arenas] == [0, 1]


def test_all_parts_are_asked_for_with_what_is_whole_alone(olds: Olds, tmp_path: Path) -> None:
    """A question names every part in memory; two halves are not whole."""
    node, _ = olds[1]
    with _newcomer(tmp_path, node):
        question = node.master.hears("asks")
    (part,) = question.parts
    assert (part.version, part.world_size, part.ranks, part.whole) == (SAVED, 2, (1,), False)
    assert offered(question, Tier.MEMORY) == ()


@pytest.mark.parametrize("fault", ["cut", "gone", "flipped"])
def test_a_part_that_cannot_be_had_is_told_before_anybody_begins(
    wire: Wire, olds: Olds, new: New, fault: str
) -> None:
    """A node that does not answer, has it no more, or sends other bytes: the master hears why."""
    node, _ = new
    if fault == "cut":
        wire.cut.add("n1")
    elif fault == "gone":
        olds[1][0].word(released(Version(1, 8)))
    else:
        wire.flip = _flip
    node.master.hears("asks")
    node.word(_answer(0, 1), 2)
    error = node.master.hears("checked").error
    words = {"cut": "n1 does not answer", "gone": "no part of rank 1", "flipped": "is damaged"}
    assert words[fault] in error


def _flip(piece: memoryview) -> None:
    piece[len(piece) // 2] ^= 1


def test_damage_on_the_way_is_refused_and_a_second_try_may_do_better(wire: Wire, new: New) -> None:
    """The rank gets an error and no bytes that pass for the tensor's."""
    node, link = new
    _begun(node, link, 0, 1)
    wire.flip = _flip
    link.send(Fetch(items=((0, 0),)))
    refused = received(link, RequestRefused)
    assert "model.weight of rank 0 on node 0 is damaged" in refused.error
    wire.flip = lambda _: None
    link.send(Fetch(items=((0, 0),)))
    received(link, Fetched)


@pytest.mark.usefixtures("olds")
def test_what_could_not_be_read_is_not_chosen_again(tmp_path: Path, wire: Wire) -> None:
    """No room for it: the next look is told so at once, and the world takes another tier."""
    full = lambda: Room(available=2**20, source="a test")  # noqa: E731
    with served(tmp_path, "new", wire, full) as node, _newcomer(tmp_path, node) as link:
        _begun(node, link, 0, 1)
        link.send(Fetch(items=((0, 0),)))
        refused = received(link, RequestRefused)
        assert "parts of other nodes" in refused.error
        assert "MiB" in refused.error
        node.word(_answer(0, 1), 2)
        link.close()
        with _newcomer(tmp_path, node, number=3):
            node.master.hears("asks")
            node.word(_answer(0, 1), 3)
            assert node.master.hears("checked").error == refused.error


def test_a_part_that_fails_half_described_leaves_no_descriptor(wire: Wire, new: New) -> None:
    """A source that sends wrong bytes for its values, again and again."""
    node, _ = new
    node.master.hears("asks")
    wire.flip = _flip
    before = _arenas_open()
    for _ in range(3):
        node.word(_answer(0, 1), 2)
        assert "is damaged" in node.master.hears("checked").error
    node.word(plan(plan_id=6, version=None, go=True), 2)
    assert _arenas_open() == before


def _arenas_open() -> int:
    """Descriptors of arenas in this process."""
    found = [one for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return sum("holdfast-arena" in str(one.readlink()) for one in found)


@pytest.mark.parametrize("item", [(0, 9), (5, 0)])
def test_what_is_not_lent_is_refused(new: New, item: tuple[int, int]) -> None:
    """An index that the table has not, a rank that nobody lends."""
    node, link = new
    _begun(node, link, 0, 1)
    link.send(Fetch(items=(item,)))
    assert "is not lent" in received(link, RequestRefused).error


def test_holders_write_what_the_others_start_from_and_others_do_not(
    olds: Olds, tmp_path: Path
) -> None:
    """Under one name for all, so that one commit makes a step of it; not where parts are lost."""
    attempts = []
    for number, (node, _) in enumerate(olds):
        with _newcomer(tmp_path, node):
            node.master.hears("asks")
            node.word(_answer(1 - number), 2)
            assert node.master.hears("checked").error == ""
            node.word(_answer(1 - number, go=True, partial=number == 1), 2)
            if number == 1:
                break
            written = node.master.hears("written")
            assert (written.version, written.ranks) == (SAVED, (number,))
            assert written.world_size == 2
            attempts.append(written.attempt)
    assert attempts == ["w2"]
    node.word(released())
    assert olds[1][0].master.heard_nothing("written")


def test_a_new_master_s_word_to_go_is_obeyed_without_a_look(wire: Wire, new: New) -> None:
    """The one before had let the others look; a source that is gone by then ends the start."""
    node, link = new
    node.master.hears("asks")
    wire.cut.add("n0")
    node.word(_answer(0, 1, go=True), 2)
    assert "n0 does not answer" in received(link, RequestRefused).error
    wire.cut.clear()
    link.send(Restore())
    node.word(_answer(0, 1, go=True), 2)
    assert received(link, RestoreStart).lent == (0, 1)


@pytest.mark.parametrize("flipped", [False, True])
def test_what_memory_has_of_a_committed_step_is_not_read_from_storage(
    tmp_path: Path, *, flipped: bool
) -> None:
    """A start from storage takes the parts that are bit for bit the committed ones from memory."""
    root = tmp_path / "root"
    root.mkdir()
    with served(tmp_path, "n0") as first, served(tmp_path, "n1") as second:
        with rank_of(first, root, 0) as rank_0, rank_of(second, root, 1) as rank_1:
            mine, _ = save_all(SAVED, (first, rank_0), (second, rank_1))
            assert second.grant(mine, "w1e1c1") == ""
            if flipped:
                _flip(_slot(rank_0).image[:12_000])
        with _newcomer(tmp_path, first) as link:
            first.master.hears("asks")
            answer = plan(version=SAVED, tier=Tier.STORAGE, go=False, shares=2)
            first.word(answer, 2)
            assert first.master.hears("checked").error == ""
            first.word(replace(answer, go=True), 2)
            origin = received(link, RestoreStart)
            assert origin.path == f"{root}/step_7"
            assert origin.ranks == (() if flipped else (0,))
            assert rank_0.holds() == (set() if flipped else {7})


def _piece(name: str, begin: int, rows: int, *, tail: bool) -> TensorItem:
    return TensorItem(
        name=name, dtype="float32", shape=(4, 2), offsets=(begin, 0), sizes=(rows, 2),
        at=0, length=8 * rows, payload=0, size=8 * rows, tail=tail,
    )  # fmt: skip


def test_a_full_copy_is_whole_but_for_what_only_a_lost_rank_had() -> None:
    """DDP: a node has each tensor and value, as its part or as the rest; a data position not."""
    own = sample_shard(0, 2, random.Random(0))[0].table
    assert not whole([own]), "half of a sharded tensor"
    assert whole([own, sample_shard(1, 2, random.Random(0))[0].table])

    def node(key: str, *pieces: TensorItem, values: tuple[ByteItem, ...]) -> ShardTable:
        paths = {
            "model.w": ("model", "w"),
            "extra.lr": ("extra", "lr"),
            f"rank_0.{key}": ("rank_0", key),
        }
        name = f"rank_0.{key}"
        return ShardTable(
            rank=0, world=2, tensor_bytes=32, tensors=pieces,
            byte_items=(*values, ByteItem(name=name)), paths={**paths, name: ("rank_0", key)},
        )  # fmt: skip

    halves = (_piece("model.w", 0, 2, tail=False), _piece("model.w", 2, 2, tail=True))
    rest = (ByteItem(name="extra.lr", tail=True),)
    assert whole([node("rng", *halves, values=rest)])
    assert not whole([node("data", *halves, values=rest)]), "the other rank's position is lost"
    assert not whole([node("rng", halves[0], values=rest)])
    assert not whole([node("rng", *halves, values=())]), "a value is nowhere"


def test_a_layout_of_another_world_does_not_disturb_what_is_lent(
    olds: Olds, tmp_path: Path
) -> None:
    """The newcomer asks for an arena of its own beside; both ranks' parts stay as they were."""
    node, rank = olds[0]
    with _newcomer(tmp_path, node) as link:
        _begun(node, link, 1)
        table = sample_shard(2, 3, random.Random(0))[0].table
        link.send(Layout(table=encode(table).decode(), bytes_room=4096, slots=3))
        received(link, Granted)
        assert rank.holds() == {7}
