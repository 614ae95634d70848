"""A keeper under a master: what it tells, and that nothing is final without the master's word."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpoints.led_nodes import (
    WAIT_SECONDS,
    Node,
    Rank,
    announced,
    flush_to_storage,
    plan,
    rank_of,
    received,
    released,
    save_all,
    served,
    two_nodes,
)
from holdfast.flash.memory.shard_table import Box
from holdfast.flash.memory.slots import Version
from holdfast.flash.server.protocol import Durable, Failed, RequestRefused, Restore, RestoreStart
from holdfast.flash.server.tiers import StorageTier
from holdfast.flash.storage.commit import Attempt
from holdfast.flash.storage.dcp_metadata import file_name
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import read_manifest_or_none
from holdfast_wire import messages
from holdfast_wire.messages import Tier
from holdfast_wire.tiers import offered


def test_nothing_is_committed_without_a_grant_or_announced_before_the_master_says_so(
    tmp_path: Path,
) -> None:
    """Parts on storage are told; a grant makes a step of them; the master announces it."""
    with two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        mine, its = save_all(Version(1, 7), (first, rank_0), (second, rank_1))
        assert (mine.ranks, its.ranks, mine.attempt) == ((0,), (1,), its.attempt)
        assert not (tmp_path / "root/step_7").exists()
        assert second.grant(mine, "w1e1c1") == ""
        files = sorted(path.name for path in (tmp_path / "root/step_7").iterdir())
        assert files == sorted([".metadata", "holdfast.json", file_name(0), file_name(1)])
        assert rank_0.link.receive(0.1) is None
        first.word(announced(Version(1, 7)))
        assert received(rank_0.link, Durable) == Durable(step=7)


def test_a_second_coordinator_takes_over_where_the_first_died(tmp_path: Path) -> None:
    """It finds the attempt under the first one's name; the first one then finds nothing."""
    with two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        mine, _ = save_all(Version(1, 7), (first, rank_0), (second, rank_1))
        root = tmp_path / "root"
        attempt = Attempt(version=Version(1, 7), number=mine.attempt)
        taken = Attempt(version=Version(1, 7), number=f"{mine.attempt}e1c1")
        (root / attempt.folder).rename(root / taken.folder)  # as far as the first one came
        assert second.grant(mine, f"{mine.attempt}e1c2") == ""
        assert (root / "step_7/holdfast.json").exists()
        assert first.grant(mine, f"{mine.attempt}e1c1") == "", "it is committed, whoever did it"


def test_a_grant_for_parts_that_are_not_in_this_directory_is_an_error(tmp_path: Path) -> None:
    """Two nodes with a directory of their own each: the reason is told, nothing is committed."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0) as rank:
        rank.save(Version(1, 7), durable=True)
        parts = node.master.hears("written")
        assert "do all nodes see the same directory?" in node.grant(parts, "w1e1c1")
        node.word(announced(Version(1, 7), "no such luck"))
        failed = received(rank.link, Failed)
        assert failed == Failed(step=7, error="no such luck")


def test_parts_that_nobody_commits_are_deleted_and_those_of_other_steps_stay(
    tmp_path: Path,
) -> None:
    """By the node of rank 0, also under the name that a coordinator gave them."""
    with two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        save_all(Version(1, 7), (first, rank_0), (second, rank_1))
        mine, _ = save_all(Version(1, 8), (first, rank_0), (second, rank_1))
        root, version = tmp_path / "root", Version(1, 7)
        taken = Attempt(version=version, number=f"{mine.attempt}e1c1")
        (root / Attempt(version=version, number=mine.attempt).folder).rename(root / taken.folder)
        for node, rank in ((second, rank_1), (first, rank_0)):
            assert (root / taken.folder).exists()
            node.word(announced(version, "newer steps waited to be committed too"))
            received(rank.link, Failed)
        assert first.grant(mine, "w1e1c2") == "", "step 8"
        assert [path.name for path in root.glob("step_*")] == ["step_8"]


def test_a_part_that_cannot_be_written_is_told_to_the_master(tmp_path: Path) -> None:
    """So that the other nodes' ranks do not wait for it."""
    with served(tmp_path) as node, rank_of(node, tmp_path / "missing", 0) as rank:
        rank.save(Version(1, 7), durable=True)
        parts = node.master.hears("written")
        assert "No such file" in parts.error
        received(rank.link, Failed)


def test_memory_is_kept_until_the_master_says_that_all_nodes_have_something_newer(
    tmp_path: Path,
) -> None:
    """The service tells the master what the node holds. Only the master's word frees memory."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0) as rank:
        rank.save(Version(1, 1))
        assert not node.master.hears("held").memory_only
        for step in (2, 3):
            rank.save(Version(1, step))
        told = node.master.hears_held()
        while len(told[1]) < 3:
            told = node.master.hears_held()
        assert told[:2] == (1, frozenset(Version(1, step) for step in (1, 2, 3)))
        assert rank.holds() == {1, 2, 3}
        node.word(released(Version(1, 2)))
        rank.comes_to_hold({2, 3})
        node.word(released(Version(1, 2), (Version(1, 3),)))
        rank.comes_to_hold({2})


def _start(node: Node, rank: Rank, number: int, answer: messages.RestorePlan) -> RestoreStart:
    node.word(answer, number)
    if not answer.go:
        assert node.master.hears("checked") == messages.RestorePlanVerified(plan_id=answer.plan_id)
        node.word(dataclasses.replace(answer, go=True), number)
    origin = received(rank.link, RestoreStart)
    assert isinstance(origin, RestoreStart)
    return origin


def test_a_world_starts_from_what_the_master_says_and_newer_memory_is_emptied(
    tmp_path: Path,
) -> None:
    """Nobody is answered before it says go."""
    with served(tmp_path) as node:
        with rank_of(node, tmp_path, 0) as rank:
            for step in (1, 2, 3):
                rank.save(Version(1, step))
            while len(node.master.hears_held()[1]) < 3:
                pass
        with rank_of(node, tmp_path, 0, round_number=2) as rank:
            rank.link.send(Restore())
            question = node.master.hears("asks")
            steps = [version.step for version in offered(question, Tier.MEMORY)]
            assert (steps, offered(question, Tier.STORAGE)) == ([3, 2, 1], ())
            assert rank.link.receive(0.1) is None
            answer = plan(version=Version(1, 2), tier=Tier.MEMORY, go=False)
            origin = _start(node, rank, 2, answer)
            assert (origin.step, origin.ranks, origin.path) == (2, (0,), "")
            rank.comes_to_hold({2})


@pytest.mark.parametrize(
    ("needed", "steps"),
    [(((0, 0), (100, 30)), [3]), (((0, 0), (200, 15)), [])],
    ids=["rows as saved", "columns"],
)
def test_memory_is_offered_to_a_layout_only_if_it_has_all_parts(
    tmp_path: Path, needed: Box, steps: list[int]
) -> None:
    """A world of the same size may cut its tensors otherwise; other nodes then lend their parts."""
    with served(tmp_path) as node:
        with rank_of(node, tmp_path, 0) as rank:
            rank.save(Version(1, 3))
            node.master.hears_held()
        with rank_of(node, tmp_path, 0, round_number=2) as rank:
            rank.link.send(Restore(needs={"model.weight": (needed,)}))
            question = node.master.hears("asks")
            assert [one.step for one in offered(question, Tier.MEMORY)] == steps
            assert [(part.version.step, part.ranks) for part in question.parts] == [(3, (0,))]


@pytest.mark.parametrize("ahead", [False, True])
def test_damage_in_memory_is_found_by_the_check(*, tmp_path: Path, ahead: bool) -> None:
    """The master hears which slot; it will choose another version.

    A new round's ranks are answered after the look ahead, and damage is found all the same.
    """
    with served(tmp_path) as node:
        with rank_of(node, tmp_path, 0) as rank:
            rank.save(Version(1, 3))
            rank.save(Version(1, 4), durable=True)
            node.master.hears("written")
            slot = next(slot for slot in rank.arena.slots if slot.version.step == 4)
            slot.image[5] ^= 1
        if ahead:
            node.service.post(node.commit.restore.look_ahead)
        with rank_of(node, tmp_path, 0, round_number=2) as rank:
            rank.link.send(Restore())
            assert node.master.hears("asks").offers
            wrong = plan(version=Version(1, 4), tier=Tier.MEMORY, go=False)
            node.word(wrong, 2)
            assert "in memory is damaged" in node.master.hears("checked").error
            right = plan(plan_id=6, version=Version(1, 3), tier=Tier.MEMORY, go=False)
            assert _start(node, rank, 2, right).step == 3


def test_a_plan_for_a_tier_that_the_node_lacks_is_answered_with_an_error(tmp_path: Path) -> None:
    """The master would wait for the verification in vain."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0, round_number=2) as rank:
        rank.link.send(Restore())
        node.master.hears("asks")
        node.word(plan(Version(1, 3), tier=Tier.UNSPECIFIED, go=False), 2)
        assert "UNSPECIFIED" in node.master.hears("checked").error


def test_each_node_looks_at_its_share_of_what_is_on_storage(tmp_path: Path) -> None:
    """A flipped bit in one file is found by the node whose share it is, and by no other."""
    with two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        mine, _ = save_all(Version(1, 7), (first, rank_0), (second, rank_1))
        assert second.grant(mine, "w1e1c1") == ""
    file = sorted((tmp_path / "root/step_7").glob("*.distcp"))[1]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with (
        served(tmp_path, "n2") as node,
        rank_of(node, tmp_path / "root", 0, round_number=2) as rank,
    ):
        rank.link.send(Restore())
        question = node.master.hears("asks")
        assert offered(question, Tier.STORAGE) == (Version(1, 7),)
        for share, damaged in ((0, False), (1, True)):
            answer = plan(
                Version(1, 7), plan_id=share + 5, tier=Tier.STORAGE, go=False, share=share, shares=2
            )
            node.word(answer, 2)
            assert bool(node.master.hears("checked").error) is damaged


def test_a_step_of_a_newer_holdfast_is_refused_before_the_master_is_asked(tmp_path: Path) -> None:
    """A master that heard of nothing would let the job begin anew."""
    with two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        mine, _ = save_all(Version(1, 7), (first, rank_0), (second, rank_1))
        assert second.grant(mine, "w1e1c1") == ""
    file = tmp_path / "root/step_7/holdfast.json"
    newer = b'"format":2,"lineage"'
    file.write_bytes(file.read_bytes().replace(b'"format":1,"lineage"', newer))
    root = tmp_path / "root"
    with served(tmp_path, "n2") as node, rank_of(node, root, 0, round_number=2) as rank:
        for _ in range(2):  # whoever asks again is told again
            rank.link.send(Restore())
            refused = received(rank.link, RequestRefused)
            assert f"{file}: format=2, this Holdfast reads 1" in refused.error
        assert node.master.heard_nothing("asks")


def test_a_new_master_is_told_everything_that_it_cannot_know(tmp_path: Path) -> None:
    """The open question with what was told, parts that nobody announced, what was carried out."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0, round_number=2) as rank:
        rank.link.send(Restore())
        node.master.hears("asks")
        node.restate()
        again = node.master.hears("asks")
        assert isinstance(again, messages.RestoreRequest)
        assert again.told is None
        _start(node, rank, 2, plan(version=None, go=True))
        rank.save(Version(2, 7), durable=True)
        parts = node.master.hears("written")
        node.restate()
        again = node.master.hears("asks")
        assert again.told is not None
        assert again.told.plan_id == 5
        assert node.master.hears("written") == parts
        node.word(announced(Version(2, 7)))
        node.restate()
        assert node.master.heard_nothing("written")


def test_a_node_that_holds_nothing_is_not_said_to_have_everything(tmp_path: Path) -> None:
    """A world to come would count on it; a world of one rank that has saved does have all."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0, world=1) as rank:
        assert not node.service.arenas.held.is_whole(())
        rank.save(Version(1, 3))
        told = node.master.hears_held()
        while not told[1]:
            assert told[2] is False
            told = node.master.hears_held()
        assert told == (1, frozenset([Version(1, 3)]), True)


@contextmanager
def _behind(node: Node) -> Iterator[None]:
    """Keep a node's service from reading until the block ends."""
    behind = threading.Event()

    def wait() -> None:
        behind.wait(WAIT_SECONDS)

    node.service.post(wait)
    yield
    behind.set()


def test_a_step_for_storage_waits_for_a_keeper_that_is_behind(tmp_path: Path) -> None:
    """Three steps are VALID before the first is heard of: the second is not given back unread."""
    with served(tmp_path) as node, rank_of(node, tmp_path / "root", 0, world=1) as rank:
        (tmp_path / "root").mkdir()
        with _behind(node):
            for step in (1, 2, 3):
                rank.save(Version(1, step), durable=True)
        told = [node.master.hears("written") for _ in range(3)]
        assert [(one.version.step, one.error) for one in told] == [(1, ""), (2, ""), (3, "")]


def test_a_step_in_memory_that_is_wanted_on_storage_waits_too(tmp_path: Path) -> None:
    """Its two messages are taken in at once: hearing of the first does not end the second."""
    (tmp_path / "root").mkdir()
    with (
        served(tmp_path) as node,
        rank_of(node, tmp_path / "root", 0, kept=2) as first,
        rank_of(node, tmp_path / "root", 1, kept=2) as second,
    ):
        with _behind(node):
            for rank in (first, second):
                rank.save(Version(1, 1))
                rank.tell_saved(Tier.STORAGE, Version(1, 1))
                rank.save(Version(1, 2))
        told = node.master.hears("written")
        assert (told.version.step, told.ranks, told.error) == (1, (0, 1), "")


def test_a_script_that_never_loads_is_kept_all_the_same(tmp_path: Path) -> None:
    """Its first save says that it has begun, also one for storage."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0) as rank:
        rank.save(Version(1, 3), durable=True)
        assert node.master.hears_held()[:2] == (1, frozenset([Version(1, 3)]))


def test_what_only_memory_had_is_written_while_the_world_starts_from_it(tmp_path: Path) -> None:
    """Every node does so with the very version that the master chose, so it becomes whole."""
    with served(tmp_path) as node:
        with rank_of(node, tmp_path, 0) as rank:
            rank.save(Version(1, 3))
        with rank_of(node, tmp_path, 0, round_number=2) as rank:
            rank.link.send(Restore())
            node.master.hears("asks")
            answer = plan(version=Version(1, 3), tier=Tier.MEMORY, go=False)
            assert _start(node, rank, 2, answer).step == 3
            parts = node.master.hears("written")
            assert (parts.version, parts.ranks, parts.attempt) == (Version(1, 3), (0,), "w2")


def _all_gone(node: Node) -> None:
    """Wait until the keeper knows that its ranks are dead."""
    deadline = time.monotonic() + WAIT_SECONDS
    while node.shared.members:
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
            told = node.master.hears_held()
            while Version(1, steps[-1]) not in told[1]:
                told = node.master.hears_held()
        yield first, second


def test_what_dead_ranks_had_in_memory_is_written_at_the_masters_word(tmp_path: Path) -> None:
    """The version that it names, in the attempt that it names; a grant makes a step of it."""
    with _two_dead_worlds(tmp_path, (3, 4)) as (first, second):
        for node in (first, second):
            _all_gone(node)
            node.word(flush_to_storage(Version(1, 4), "h1c9"))
        mine, its = first.master.hears("written"), second.master.hears("written")
        assert (mine.ranks, its.ranks, mine.world_size) == ((0,), (1,), 2)
        assert (mine.attempt, its.attempt, mine.error) == ("h1c9", "h1c9", "")
        assert mine.bytes > 0
        assert second.grant(mine, "h1c9e1c10") == ""
        found = read_manifest_or_none(Disk(), str(tmp_path / "root/step_4"))
        assert found is not None
        assert found.version == Version(1, 4)


def test_an_order_that_is_given_again_is_told_again_and_nothing_is_written_twice(
    tmp_path: Path,
) -> None:
    """A master that was away may not have heard of it."""
    with _two_dead_worlds(tmp_path, (4,)) as (first, _):
        first.word(flush_to_storage(Version(1, 4), "h1c9"))
        parts = first.master.hears("written")
        folder = tmp_path / "root" / Attempt(version=Version(1, 4), number="h1c9").folder
        before = sorted((path.name, path.stat().st_ino) for path in folder.iterdir())
        first.word(flush_to_storage(Version(1, 4), "h1c9"))
        assert first.master.hears("written") == parts
        assert before == sorted((path.name, path.stat().st_ino) for path in folder.iterdir())


def test_what_cannot_be_written_out_of_memory_is_told_though_no_rank_waits(tmp_path: Path) -> None:
    """A version that is not there, a disk that refuses, ranks that named no directory."""
    with _two_dead_worlds(tmp_path, (4,)) as (first, second):
        first.word(flush_to_storage(Version(1, 5), "h1c9"))
        parts = first.master.hears("written")
        assert (parts.version, parts.attempt, parts.ranks) == (Version(1, 5), "h1c9", ())
        assert "is in the memory of 0 of its 1 ranks" in parts.error
        (tmp_path / "root").rmdir()
        second.word(flush_to_storage(Version(1, 4), "h1c9"))
        assert "No such file" in second.master.hears("written").error
    with served(tmp_path, "n2") as node:
        with rank_of(node, Path(), 0) as rank:
            storage = node.shared.tiers[Tier.STORAGE]
            assert isinstance(storage, StorageTier)
            storage.storage = None  # as where its ranks gave no path
            rank.save(Version(1, 4))
            assert node.master.hears("held").memory_only
        node.word(flush_to_storage(Version(1, 4), "h1c9"))
        assert "named no directory" in node.master.hears("written").error


def test_a_part_that_its_rank_had_asked_for_is_not_written_twice(tmp_path: Path) -> None:
    """The order names the attempt that is on its way: the word of it is the answer."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0) as rank:
        rank.save(Version(1, 7), durable=True)
        parts = node.master.hears("written")
        node.word(flush_to_storage(Version(1, 7), "w1"))
        assert node.master.hears("written") == parts
        assert node.master.heard_nothing("written")
