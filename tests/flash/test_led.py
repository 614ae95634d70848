"""A keeper under a master: what it tells, and that nothing is final without the master's word."""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.flash.arena import Arena
from holdfast.flash.commit import Attempt, read_manifest_or_none
from holdfast.flash.decide.slots import SlotState, Version
from holdfast.flash.disk import PosixDisk
from holdfast.flash.keeper import Keeper
from holdfast.flash.lead import Answer, Question, Written
from holdfast.flash.led import LedService
from holdfast.flash.link import (
    Durable,
    Failed,
    Granted,
    Hello,
    Layout,
    Link,
    Origin,
    Refused,
    Restore,
    Saved,
)
from holdfast.flash.metadata import file_name
from holdfast.flash.persisting import Grant
from holdfast.flash.sockets import connect, listen
from holdfast.flash.table import encode
from sample_shards import sample_shard

WAIT_S = 30.0


@dataclass
class Script:
    """A master whose words the test speaks; what it is told lies in queues."""

    told: dict[str, queue.Queue[Any]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name not in ("held", "written", "committed", "asks", "checked"):
            raise AttributeError(name)
        return lambda *words: self._queue(name).put(words)

    def attempt(self, round_number: int) -> str:
        """All of a round's parts lie in this attempt's directory."""
        return f"w{round_number}"

    def _queue(self, name: str) -> queue.Queue[Any]:
        return self.told.setdefault(name, queue.Queue())

    def hears(self, name: str) -> Any:
        """Return the next word of a kind."""
        return self._queue(name).get(timeout=WAIT_S)

    def heard_nothing(self, name: str) -> bool:
        """Whether no word of a kind waits."""
        return self._queue(name).empty()


@dataclass
class Node:
    """A served keeper and its master."""

    path: str
    service: LedService
    master: Script

    def word(self, name: str, *words: Any) -> None:
        """Let the master say something, and wait until it was taken in."""
        taken = threading.Event()

        def take() -> None:
            getattr(self.service, name)(*words)
            taken.set()

        self.service.post(take)
        assert taken.wait(WAIT_S), name


@contextmanager
def _node(folder: Path, name: str = "node") -> Iterator[Node]:
    path, keeper, master = str(folder / name), Keeper(led=True), Script()
    service = LedService(keeper, listen(path), master)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield Node(path, service, master)
    finally:
        service.stop()
        thread.join()
        keeper.close()


@dataclass
class Rank:
    """A trainer that says what it is told to."""

    link: Link
    arena: Arena

    def save(self, version: Version, *, durable: bool = False) -> None:
        """Fill a free slot and tell."""
        slot = next(slot for slot in self.arena.slots if slot.state is SlotState.EMPTY)
        table = self.arena.table
        slot.begin_write(version, rank=table.rank, world=table.world, layout=self.arena.layout)
        slot.image[:] = bytes([version.step]) * len(slot.image)
        slot.commit([10])
        self.link.send(Saved(lineage=version.lineage, step=version.step, durable=durable))

    def holds(self) -> set[int]:
        """Return the steps in its slots."""
        return {slot.version.step for slot in self.arena.slots if slot.state is SlotState.VALID}

    def comes_to_hold(self, steps: set[int]) -> None:
        """Wait until these are left: a slot that is being hashed goes a moment later."""
        deadline = time.monotonic() + WAIT_S
        while self.holds() != steps:
            assert time.monotonic() < deadline, self.holds()
            time.sleep(0.001)


@contextmanager
def _rank(
    node: Node, root: Path, rank: int, world: int = 2, round_number: int = 1
) -> Iterator[Rank]:
    link = connect(node.path)
    link.send(
        Hello(
            rank=rank, world=world, kept=1, lineage=round_number, root=str(root),
            keep_last=3, keep_every=0,
        )
    )  # fmt: skip
    table = sample_shard(rank, world, random.Random(0))[0].table
    link.send(Layout(table=encode(table).decode(), bytes_room=4096, slots=3))
    _, (fd,), _ = link.expect(Granted, timeout_s=WAIT_S)
    arena = Arena(fd)
    os.close(fd)
    try:
        yield Rank(link, arena)
    finally:
        link.close()


def _grant(written: Written, own: str) -> Grant:
    return Grant(
        version=written.version,
        world=written.world,
        root=written.root,
        attempt=written.attempt,
        own=own,
    )


@contextmanager
def _two_nodes(folder: Path) -> Iterator[tuple[Node, Rank, Node, Rank]]:
    """Two nodes of one rank each, which share a directory."""
    root = folder / "root"
    root.mkdir()
    with (
        _node(folder, "n0") as first,
        _node(folder, "n1") as second,
        _rank(first, root, 0) as rank_0,
        _rank(second, root, 1) as rank_1,
    ):
        yield first, rank_0, second, rank_1


def test_nothing_is_committed_without_a_grant_or_announced_before_the_master_says_so(
    tmp_path: Path,
) -> None:
    """Parts on storage are told; a grant makes a step of them; the master announces it."""
    with _two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        rank_0.save(Version(1, 7), durable=True)
        rank_1.save(Version(1, 7), durable=True)
        (mine,), (its,) = first.master.hears("written"), second.master.hears("written")
        assert (mine.ranks, its.ranks, mine.attempt) == ((0,), (1,), its.attempt)
        assert not (tmp_path / "root/step_7").exists()
        second.word("grant", _grant(mine, "w1e1c1"))
        assert second.master.hears("committed")[1] == ""
        files = sorted(path.name for path in (tmp_path / "root/step_7").iterdir())
        assert files == sorted([".metadata", "holdfast.json", file_name(0), file_name(1)])
        assert rank_0.link.receive(0.1) is None
        first.word("announce", Version(1, 7), "")
        assert rank_0.link.expect(Durable, timeout_s=WAIT_S)[0] == Durable(step=7)


def test_a_second_coordinator_takes_over_where_the_first_died(tmp_path: Path) -> None:
    """It finds the attempt under the first one's name; the first one then finds nothing."""
    with _two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        rank_0.save(Version(1, 7), durable=True)
        rank_1.save(Version(1, 7), durable=True)
        (mine,), _ = first.master.hears("written"), second.master.hears("written")
        root = tmp_path / "root"
        attempt = Attempt(version=Version(1, 7), number=mine.attempt)
        taken = Attempt(version=Version(1, 7), number=f"{mine.attempt}e1c1")
        (root / attempt.folder).rename(root / taken.folder)  # as far as the first one came
        second.word("grant", _grant(mine, f"{mine.attempt}e1c2"))
        assert second.master.hears("committed")[1] == ""
        assert (root / "step_7/holdfast.json").exists()
        first.word("grant", _grant(mine, f"{mine.attempt}e1c1"))
        assert first.master.hears("committed")[1] == "", "it is committed, whoever did it"


def test_a_grant_for_parts_that_are_not_in_this_directory_is_an_error(tmp_path: Path) -> None:
    """Two nodes with a directory of their own each: the reason is told, nothing is committed."""
    with _node(tmp_path) as node, _rank(node, tmp_path, 0) as rank:
        rank.save(Version(1, 7), durable=True)
        (parts,) = node.master.hears("written")
        node.word("grant", _grant(parts, "w1e1c1"))
        assert "do all nodes see the same directory?" in node.master.hears("committed")[1]
        node.word("announce", Version(1, 7), "no such luck")
        failed = rank.link.expect(Failed, timeout_s=WAIT_S)[0]
        assert failed == Failed(step=7, error="no such luck")


def test_a_part_that_cannot_be_written_is_told_to_the_master(tmp_path: Path) -> None:
    """So that the other nodes' ranks do not wait for it."""
    with _node(tmp_path) as node, _rank(node, tmp_path / "missing", 0) as rank:
        rank.save(Version(1, 7), durable=True)
        (parts,) = node.master.hears("written")
        assert "No such file" in parts.error
        assert isinstance(rank.link.expect(Failed, timeout_s=WAIT_S)[0], Failed)


def test_memory_is_kept_until_the_master_says_that_all_nodes_have_something_newer(
    tmp_path: Path,
) -> None:
    """What this node has is told; what it alone has newer does not free anything."""
    with _node(tmp_path) as node, _rank(node, tmp_path, 0) as rank:
        for step in (1, 2, 3):
            rank.save(Version(1, step))
        told = node.master.hears("held")
        while len(told[1]) < 3:
            told = node.master.hears("held")
        assert told == (1, frozenset(Version(1, step) for step in (1, 2, 3)))
        assert rank.holds() == {1, 2, 3}
        node.word("release", Version(1, 2), frozenset())
        rank.comes_to_hold({2, 3})
        node.word("release", Version(1, 2), frozenset([Version(1, 3)]))
        rank.comes_to_hold({2})


def _start(node: Node, rank: Rank, number: int, answer: Answer) -> Origin:
    node.word("start_from", number, answer)
    if not answer.go:
        assert node.master.hears("checked") == (number, answer, "")
        go = Answer(number=answer.number, version=answer.version, memory=answer.memory, go=True)
        node.word("start_from", number, go)
    origin, fds, _ = rank.link.expect(Origin, timeout_s=WAIT_S)
    for fd in fds:
        os.close(fd)
    assert isinstance(origin, Origin)
    return origin


def test_a_world_starts_from_what_the_master_says_and_newer_memory_is_emptied(
    tmp_path: Path,
) -> None:
    """Nobody is answered before it says go."""
    with _node(tmp_path) as node:
        with _rank(node, tmp_path, 0) as rank:
            for step in (1, 2, 3):
                rank.save(Version(1, step))
            while len(node.master.hears("held")[1]) < 3:
                pass
        with _rank(node, tmp_path, 0, round_number=2) as rank:
            rank.link.send(Restore())
            (question,) = node.master.hears("asks")
            steps = [version.step for version in question.memory]
            assert (question.round, steps, question.stored) == (2, [3, 2, 1], ())
            assert rank.link.receive(0.1) is None
            answer = Answer(number=5, version=Version(1, 2), memory=True, go=False)
            origin = _start(node, rank, 2, answer)
            assert (origin.step, origin.ranks, origin.path) == (2, (0,), "")
            rank.comes_to_hold({2})


def test_damage_in_memory_is_found_by_the_check(tmp_path: Path) -> None:
    """The master hears which slot; it will choose another version."""
    with _node(tmp_path) as node:
        with _rank(node, tmp_path, 0) as rank:
            rank.save(Version(1, 3))
            rank.save(Version(1, 4), durable=True)
            node.master.hears("written")
            slot = next(slot for slot in rank.arena.slots if slot.version.step == 4)
            slot.image[5] ^= 1
        with _rank(node, tmp_path, 0, round_number=2) as rank:
            rank.link.send(Restore())
            node.master.hears("asks")
            wrong = Answer(number=5, version=Version(1, 4), memory=True, go=False)
            node.word("start_from", 2, wrong)
            assert "in memory is damaged" in node.master.hears("checked")[2]
            right = Answer(number=6, version=Version(1, 3), memory=True, go=False)
            assert _start(node, rank, 2, right).step == 3


def test_each_node_looks_at_its_share_of_what_is_on_storage(tmp_path: Path) -> None:
    """A flipped bit in one file is found by the node whose share it is, and by no other."""
    with _two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        rank_0.save(Version(1, 7), durable=True)
        rank_1.save(Version(1, 7), durable=True)
        (mine,), _ = first.master.hears("written"), second.master.hears("written")
        second.word("grant", _grant(mine, "w1e1c1"))
        second.master.hears("committed")
    file = sorted((tmp_path / "root/step_7").glob("*.distcp"))[1]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with _node(tmp_path, "n2") as node, _rank(node, tmp_path / "root", 0, round_number=2) as rank:
        rank.link.send(Restore())
        (question,) = node.master.hears("asks")
        assert question.stored == (Version(1, 7),)
        for share, damaged in ((0, False), (1, True)):
            answer = Answer(
                number=share + 5, version=Version(1, 7), memory=False, go=False,
                share=share, shares=2,
            )  # fmt: skip
            node.word("start_from", 2, answer)
            assert bool(node.master.hears("checked")[2]) is damaged


def test_a_step_of_a_newer_holdfast_is_refused_before_the_master_is_asked(tmp_path: Path) -> None:
    """A master that heard of nothing would let the job begin anew."""
    with _two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        rank_0.save(Version(1, 7), durable=True)
        rank_1.save(Version(1, 7), durable=True)
        (mine,), _ = first.master.hears("written"), second.master.hears("written")
        second.word("grant", _grant(mine, "w1e1c1"))
        second.master.hears("committed")
    file = tmp_path / "root/step_7/holdfast.json"
    newer = b'"format":2,"lineage"'
    file.write_bytes(file.read_bytes().replace(b'"format":1,"lineage"', newer))
    with _node(tmp_path, "n2") as node, _rank(node, tmp_path / "root", 0, round_number=2) as rank:
        for _ in range(2):  # whoever asks again is told again
            rank.link.send(Restore())
            refused = rank.link.expect(Refused, timeout_s=WAIT_S)[0]
            assert isinstance(refused, Refused)
            assert f"{file}: format=2, this Holdfast reads 1" in refused.error
        assert node.master.heard_nothing("asks")


def test_a_new_master_is_told_everything_that_it_cannot_know(tmp_path: Path) -> None:
    """The open question with what was told, parts that nobody announced, what was carried out."""
    with _node(tmp_path) as node, _rank(node, tmp_path, 0, round_number=2) as rank:
        rank.link.send(Restore())
        node.master.hears("asks")
        node.word("restate")
        (again,) = node.master.hears("asks")
        assert isinstance(again, Question)
        assert again.told is None
        _start(node, rank, 2, Answer(number=5, version=None, memory=False, go=True))
        rank.save(Version(2, 7), durable=True)
        (parts,) = node.master.hears("written")
        node.word("restate")
        (again,) = node.master.hears("asks")
        assert again.told is not None
        assert again.told.number == 5
        assert node.master.hears("written") == (parts,)
        node.word("announce", Version(2, 7), "")
        node.word("restate")
        assert node.master.heard_nothing("written")


@pytest.mark.parametrize("durable", [False, True])
def test_a_script_that_never_loads_is_kept_all_the_same(tmp_path: Path, *, durable: bool) -> None:
    """Its first save says that it has begun."""
    with _node(tmp_path) as node, _rank(node, tmp_path, 0) as rank:
        rank.save(Version(1, 3), durable=durable)
        assert node.master.hears("held") == (1, frozenset([Version(1, 3)]))


def test_what_only_memory_had_is_written_while_the_world_starts_from_it(tmp_path: Path) -> None:
    """Every node does so with the very version that the master chose, so it becomes whole."""
    with _node(tmp_path) as node:
        with _rank(node, tmp_path, 0) as rank:
            rank.save(Version(1, 3))
        with _rank(node, tmp_path, 0, round_number=2) as rank:
            rank.link.send(Restore())
            node.master.hears("asks")
            answer = Answer(number=5, version=Version(1, 3), memory=True, go=False)
            assert _start(node, rank, 2, answer).step == 3
            (parts,) = node.master.hears("written")
            assert (parts.version, parts.ranks, parts.attempt) == (Version(1, 3), (0,), "w2")


def _all_gone(node: Node) -> None:
    """Wait until the keeper knows that its ranks are dead."""
    deadline = time.monotonic() + WAIT_S
    while node.service._members:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@contextmanager
def _two_dead_worlds(folder: Path, steps: tuple[int, ...]) -> Iterator[tuple[Node, Node]]:
    """Two nodes whose ranks saved these steps into memory, and are gone."""
    (folder / "root").mkdir()
    with _node(folder, "n0") as first, _node(folder, "n1") as second:
        for number, node in enumerate((first, second)):
            with _rank(node, folder / "root", number) as rank:
                for step in steps:
                    rank.save(Version(1, step))
            told = node.master.hears("held")
            while Version(1, steps[-1]) not in told[1]:
                told = node.master.hears("held")
        yield first, second


def test_what_dead_ranks_had_in_memory_is_written_at_the_masters_word(tmp_path: Path) -> None:
    """The version that it names, in the attempt that it names; a grant makes a step of it."""
    with _two_dead_worlds(tmp_path, (3, 4)) as (first, second):
        for node in (first, second):
            _all_gone(node)
            node.word("save_held", Version(1, 4), "h1c9")
        (mine,), (its,) = first.master.hears("written"), second.master.hears("written")
        assert (mine.ranks, its.ranks, mine.world) == ((0,), (1,), 2)
        assert (mine.attempt, its.attempt, mine.error) == ("h1c9", "h1c9", "")
        assert mine.size > 0
        second.word("grant", _grant(mine, "h1c9e1c10"))
        assert second.master.hears("committed")[1] == ""
        found = read_manifest_or_none(PosixDisk(), str(tmp_path / "root/step_4"))
        assert found is not None
        assert found.version == Version(1, 4)


def test_an_order_that_is_given_again_is_told_again_and_nothing_is_written_twice(
    tmp_path: Path,
) -> None:
    """A master that was away may not have heard of it."""
    with _two_dead_worlds(tmp_path, (4,)) as (first, _):
        first.word("save_held", Version(1, 4), "h1c9")
        (parts,) = first.master.hears("written")
        folder = tmp_path / "root" / Attempt(version=Version(1, 4), number="h1c9").folder
        before = sorted((path.name, path.stat().st_ino) for path in folder.iterdir())
        first.word("save_held", Version(1, 4), "h1c9")
        assert first.master.hears("written") == (parts,)
        assert before == sorted((path.name, path.stat().st_ino) for path in folder.iterdir())


def test_what_cannot_be_written_out_of_memory_is_told_though_no_rank_waits(tmp_path: Path) -> None:
    """A version that is not there, a disk that refuses, ranks that named no directory."""
    with _two_dead_worlds(tmp_path, (4,)) as (first, second):
        first.word("save_held", Version(1, 5), "h1c9")
        (parts,) = first.master.hears("written")
        assert (parts.version, parts.attempt, parts.ranks) == (Version(1, 5), "h1c9", ())
        assert "is in the memory of 0 of its 1 ranks" in parts.error
        (tmp_path / "root").rmdir()
        second.word("save_held", Version(1, 4), "h1c9")
        assert "No such file" in second.master.hears("written")[0].error
    with _node(tmp_path, "n2") as node:
        with _rank(node, Path(), 0) as rank:
            node.service._storage = None  # as where its ranks gave no path
            rank.save(Version(1, 4))
            node.master.hears("held")
        node.word("save_held", Version(1, 4), "h1c9")
        assert "named no directory" in node.master.hears("written")[0].error


def test_a_part_that_its_rank_had_asked_for_is_not_written_twice(tmp_path: Path) -> None:
    """The order names the attempt that is on its way: the word of it is the answer."""
    with _node(tmp_path) as node, _rank(node, tmp_path, 0) as rank:
        rank.save(Version(1, 7), durable=True)
        (parts,) = node.master.hears("written")
        node.word("save_held", Version(1, 7), "w1")
        assert node.master.hears("written") == (parts,)
        assert node.master.heard_nothing("written")


def test_a_world_of_one_node_tells_what_it_has_too(tmp_path: Path) -> None:
    """Else the master could not have it written when the job ends."""
    with _node(tmp_path) as node, _rank(node, tmp_path, 0, world=1) as rank:
        rank.save(Version(1, 3))
        assert node.master.hears("held") == (1, frozenset([Version(1, 3)]))
