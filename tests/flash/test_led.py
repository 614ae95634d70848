"""A keeper under a master: what it tells, and that nothing is final without the master's word."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.flash.commit import Attempt, read_manifest_or_none
from holdfast.flash.decide.slots import Version
from holdfast.flash.disk import PosixDisk
from holdfast.flash.lead import Answer, Question
from holdfast.flash.link import (
    Durable,
    Failed,
    Origin,
    Refused,
    Restore,
)
from holdfast.flash.metadata import file_name
from led_nodes import WAIT_S, Node, Rank, grant_of, rank_of, served, two_nodes


def test_nothing_is_committed_without_a_grant_or_announced_before_the_master_says_so(
    tmp_path: Path,
) -> None:
    """Parts on storage are told; a grant makes a step of them; the master announces it."""
    with two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        rank_0.save(Version(1, 7), durable=True)
        rank_1.save(Version(1, 7), durable=True)
        (mine,), (its,) = first.master.hears("written"), second.master.hears("written")
        assert (mine.ranks, its.ranks, mine.attempt) == ((0,), (1,), its.attempt)
        assert not (tmp_path / "root/step_7").exists()
        second.word("grant", grant_of(mine, "w1e1c1"))
        assert second.master.hears("committed")[1] == ""
        files = sorted(path.name for path in (tmp_path / "root/step_7").iterdir())
        assert files == sorted([".metadata", "holdfast.json", file_name(0), file_name(1)])
        assert rank_0.link.receive(0.1) is None
        first.word("announce", Version(1, 7), "")
        assert rank_0.link.expect(Durable, timeout_s=WAIT_S)[0] == Durable(step=7)


def test_a_second_coordinator_takes_over_where_the_first_died(tmp_path: Path) -> None:
    """It finds the attempt under the first one's name; the first one then finds nothing."""
    with two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        rank_0.save(Version(1, 7), durable=True)
        rank_1.save(Version(1, 7), durable=True)
        (mine,), _ = first.master.hears("written"), second.master.hears("written")
        root = tmp_path / "root"
        attempt = Attempt(version=Version(1, 7), number=mine.attempt)
        taken = Attempt(version=Version(1, 7), number=f"{mine.attempt}e1c1")
        (root / attempt.folder).rename(root / taken.folder)  # as far as the first one came
        second.word("grant", grant_of(mine, f"{mine.attempt}e1c2"))
        assert second.master.hears("committed")[1] == ""
        assert (root / "step_7/holdfast.json").exists()
        first.word("grant", grant_of(mine, f"{mine.attempt}e1c1"))
        assert first.master.hears("committed")[1] == "", "it is committed, whoever did it"


def test_a_grant_for_parts_that_are_not_in_this_directory_is_an_error(tmp_path: Path) -> None:
    """Two nodes with a directory of their own each: the reason is told, nothing is committed."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0) as rank:
        rank.save(Version(1, 7), durable=True)
        (parts,) = node.master.hears("written")
        node.word("grant", grant_of(parts, "w1e1c1"))
        assert "do all nodes see the same directory?" in node.master.hears("committed")[1]
        node.word("announce", Version(1, 7), "no such luck")
        failed = rank.link.expect(Failed, timeout_s=WAIT_S)[0]
        assert failed == Failed(step=7, error="no such luck")


def test_a_part_that_cannot_be_written_is_told_to_the_master(tmp_path: Path) -> None:
    """So that the other nodes' ranks do not wait for it."""
    with served(tmp_path) as node, rank_of(node, tmp_path / "missing", 0) as rank:
        rank.save(Version(1, 7), durable=True)
        (parts,) = node.master.hears("written")
        assert "No such file" in parts.error
        assert isinstance(rank.link.expect(Failed, timeout_s=WAIT_S)[0], Failed)


def test_memory_is_kept_until_the_master_says_that_all_nodes_have_something_newer(
    tmp_path: Path,
) -> None:
    """What this node has is told; what it alone has newer does not free anything."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0) as rank:
        for step in (1, 2, 3):
            rank.save(Version(1, step))
        told = node.master.hears("held")
        while len(told[1]) < 3:
            told = node.master.hears("held")
        assert told[:2] == (1, frozenset(Version(1, step) for step in (1, 2, 3)))
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
    with served(tmp_path) as node:
        with rank_of(node, tmp_path, 0) as rank:
            for step in (1, 2, 3):
                rank.save(Version(1, step))
            while len(node.master.hears("held")[1]) < 3:
                pass
        with rank_of(node, tmp_path, 0, round_number=2) as rank:
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
    with served(tmp_path) as node:
        with rank_of(node, tmp_path, 0) as rank:
            rank.save(Version(1, 3))
            rank.save(Version(1, 4), durable=True)
            node.master.hears("written")
            slot = next(slot for slot in rank.arena.slots if slot.version.step == 4)
            slot.image[5] ^= 1
        with rank_of(node, tmp_path, 0, round_number=2) as rank:
            rank.link.send(Restore())
            node.master.hears("asks")
            wrong = Answer(number=5, version=Version(1, 4), memory=True, go=False)
            node.word("start_from", 2, wrong)
            assert "in memory is damaged" in node.master.hears("checked")[2]
            right = Answer(number=6, version=Version(1, 3), memory=True, go=False)
            assert _start(node, rank, 2, right).step == 3


def test_each_node_looks_at_its_share_of_what_is_on_storage(tmp_path: Path) -> None:
    """A flipped bit in one file is found by the node whose share it is, and by no other."""
    with two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        rank_0.save(Version(1, 7), durable=True)
        rank_1.save(Version(1, 7), durable=True)
        (mine,), _ = first.master.hears("written"), second.master.hears("written")
        second.word("grant", grant_of(mine, "w1e1c1"))
        second.master.hears("committed")
    file = sorted((tmp_path / "root/step_7").glob("*.distcp"))[1]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with (
        served(tmp_path, "n2") as node,
        rank_of(node, tmp_path / "root", 0, round_number=2) as rank,
    ):
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
    with two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        rank_0.save(Version(1, 7), durable=True)
        rank_1.save(Version(1, 7), durable=True)
        (mine,), _ = first.master.hears("written"), second.master.hears("written")
        second.word("grant", grant_of(mine, "w1e1c1"))
        second.master.hears("committed")
    file = tmp_path / "root/step_7/holdfast.json"
    newer = b'"format":2,"lineage"'
    file.write_bytes(file.read_bytes().replace(b'"format":1,"lineage"', newer))
    root = tmp_path / "root"
    with served(tmp_path, "n2") as node, rank_of(node, root, 0, round_number=2) as rank:
        for _ in range(2):  # whoever asks again is told again
            rank.link.send(Restore())
            refused = rank.link.expect(Refused, timeout_s=WAIT_S)[0]
            assert isinstance(refused, Refused)
            assert f"{file}: format=2, this Holdfast reads 1" in refused.error
        assert node.master.heard_nothing("asks")


def test_a_new_master_is_told_everything_that_it_cannot_know(tmp_path: Path) -> None:
    """The open question with what was told, parts that nobody announced, what was carried out."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0, round_number=2) as rank:
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


def test_a_node_that_holds_nothing_is_not_said_to_have_everything(tmp_path: Path) -> None:
    """A world to come would count on it; a world of one rank that has saved does have all."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0, world=1) as rank:
        assert not node.service.keeper.offer.is_whole(())
        rank.save(Version(1, 3))
        told = node.master.hears("held")
        while not told[1]:
            assert told[2] is False
            told = node.master.hears("held")
        assert told == (1, frozenset([Version(1, 3)]), True)


def test_a_step_for_storage_waits_for_a_keeper_that_is_behind(tmp_path: Path) -> None:
    """Three steps are VALID before the first is heard of: the second is not given back unread."""
    with served(tmp_path) as node, rank_of(node, tmp_path / "root", 0, world=1) as rank:
        (tmp_path / "root").mkdir()
        behind = threading.Event()

        def wait() -> None:
            behind.wait(WAIT_S)

        node.service.post(wait)
        for step in (1, 2, 3):
            rank.save(Version(1, step), durable=True)
        behind.set()
        told = [node.master.hears("written")[0] for _ in range(3)]
        assert [(one.version.step, one.error) for one in told] == [(1, ""), (2, ""), (3, "")]


@pytest.mark.parametrize("durable", [False, True])
def test_a_script_that_never_loads_is_kept_all_the_same(tmp_path: Path, *, durable: bool) -> None:
    """Its first save says that it has begun."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0) as rank:
        rank.save(Version(1, 3), durable=durable)
        assert node.master.hears("held")[:2] == (1, frozenset([Version(1, 3)]))


def test_what_only_memory_had_is_written_while_the_world_starts_from_it(tmp_path: Path) -> None:
    """Every node does so with the very version that the master chose, so it becomes whole."""
    with served(tmp_path) as node:
        with rank_of(node, tmp_path, 0) as rank:
            rank.save(Version(1, 3))
        with rank_of(node, tmp_path, 0, round_number=2) as rank:
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
    with served(folder, "n0") as first, served(folder, "n1") as second:
        for number, node in enumerate((first, second)):
            with rank_of(node, folder / "root", number) as rank:
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
        second.word("grant", grant_of(mine, "h1c9e1c10"))
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
    with served(tmp_path, "n2") as node:
        with rank_of(node, Path(), 0) as rank:
            node.service._storage = None  # as where its ranks gave no path
            rank.save(Version(1, 4))
            node.master.hears("held")
        node.word("save_held", Version(1, 4), "h1c9")
        assert "named no directory" in node.master.hears("written")[0].error


def test_a_part_that_its_rank_had_asked_for_is_not_written_twice(tmp_path: Path) -> None:
    """The order names the attempt that is on its way: the word of it is the answer."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0) as rank:
        rank.save(Version(1, 7), durable=True)
        (parts,) = node.master.hears("written")
        node.word("save_held", Version(1, 7), "w1")
        assert node.master.hears("written") == (parts,)
        assert node.master.heard_nothing("written")


def test_a_world_of_one_node_tells_what_it_has_too(tmp_path: Path) -> None:
    """Else the master could not have it written when the job ends."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0, world=1) as rank:
        rank.save(Version(1, 3))
        assert node.master.hears("held")[:2] == (1, frozenset([Version(1, 3)]))
