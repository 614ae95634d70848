"""A third tier beside memory and storage, given to the service as a row of its table alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpoints.copies_tier import copies_tier, node_with_copies, three_tiers
from checkpoints.led_nodes import (
    WAIT_SECONDS,
    Rank,
    Served,
    answered,
    plan,
    rank_of,
    received,
    served,
)
from holdfast.flash.memory.arena import Arena
from holdfast.flash.memory.slots import Version
from holdfast.flash.server.protocol import Durable, RequestRefused, Restore, RestoreStart
from holdfast_wire.messages import RestorePlanVerified, Tier
from holdfast_wire.tiers import offered


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Tier:
    """The third tier's name, known as if `checkpoint.proto` had it."""
    name = copies_tier()
    monkeypatch.setitem(Tier._value2member_map_, name.value, name)
    return name


def _images(start: RestoreStart, descriptors: Sequence[int]) -> dict[int, bytes]:
    """Return the images of a start by rank, and close its descriptors."""
    images = {}
    for fd, rank, index in zip(descriptors, start.ranks, start.slots, strict=True):
        arena = Arena(fd)
        os.close(fd)
        images[rank] = bytes(arena.slots[index].image)
        arena.close()
    return images


@contextmanager
def _start(
    server: Served, folder: Path, lineage: int
) -> Iterator[tuple[Rank, RestoreStart, Mapping[int, bytes]]]:
    """Connect the only rank of a world; yield also its start, and its images by rank."""
    root = folder / "root"
    root.mkdir(exist_ok=True)
    with rank_of(server, root, 0, world=1, round_number=lineage) as rank:
        rank.link.send(Restore())
        start, descriptors = answered(rank.link, RestoreStart)
        yield rank, start, _images(start, descriptors)


def _comes_to_hold(folder: Path, names: set[str]) -> None:
    """Wait until the directory of the copies has these versions, and nothing unfinished."""
    deadline = time.monotonic() + WAIT_SECONDS
    while {path.name for path in (folder / "copies").iterdir()} != names:
        assert time.monotonic() < deadline, list((folder / "copies").iterdir())
        time.sleep(0.001)


def _content(step: int, like: bytes) -> bytes:
    return bytes([step]) * len(like)


def test_a_third_tier_is_written_committed_restored_and_released(
    tmp_path: Path, copies: Tier
) -> None:
    """The newest version is in it: a world starts from it when memory is gone."""
    with (
        node_with_copies(tmp_path, copies, "first") as server,
        _start(server, tmp_path, 1) as (rank, start, _),
    ):
        assert start == RestoreStart()
        rank.save(Version(1, 7), durable=True)
        assert received(rank.link, Durable) == Durable(step=7)
        rank.save_to(copies, Version(1, 8))
        _comes_to_hold(tmp_path, {"1.8"})
        rank.save_to(copies, Version(1, 9))
        _comes_to_hold(tmp_path, {"1.9"})
        assert rank.link.receive(0.1) is None, "no rank may wait for a copy"
    with node_with_copies(tmp_path, copies, "second") as server:
        with _start(server, tmp_path, 2) as (rank, start, images):
            assert (start.lineage, start.step, start.path, start.durable) == (1, 9, "", False)
            assert images == {0: _content(9, images[0])}
            rank.save_to(copies, Version(2, 10))
            _comes_to_hold(tmp_path, {"2.10"})
        copy = tmp_path / "copies/2.10/0"
        copy.write_bytes(copy.read_bytes().replace(_content(10, images[0]), b"\0" * len(images[0])))
    with (
        node_with_copies(tmp_path, copies, "third") as server,
        _start(server, tmp_path, 3) as (_, start, images),
    ):
        assert (start.step, start.path) == (7, f"{tmp_path}/root/step_7")
        assert (start.durable, images) == (True, {})
        (note,) = start.notes
        assert "step 10 was passed over" in note
        assert "damaged" in note
        _comes_to_hold(tmp_path, set())


def test_the_nearest_tier_serves_a_version_that_several_have(tmp_path: Path, copies: Tier) -> None:
    """Memory goes before the copies, and the copies go before storage."""
    with node_with_copies(tmp_path, copies, "first") as server:
        with _start(server, tmp_path, 1) as (rank, _, _):
            rank.save(Version(1, 7), durable=True)
            assert received(rank.link, Durable) == Durable(step=7)
            rank.tell_saved(copies, Version(1, 7))
            _comes_to_hold(tmp_path, {"1.7"})
        with _start(server, tmp_path, 2) as (_, start, images):
            assert (start.step, start.slots, start.durable) == (7, (0,), False)
            assert images == {0: _content(7, images[0])}
            _comes_to_hold(tmp_path, set())


def test_a_failure_in_a_third_tier_is_no_failure_on_storage(tmp_path: Path, copies: Tier) -> None:
    """A rank that waits for the same step on storage hears that it is durable, and nothing else."""
    with (
        node_with_copies(tmp_path, copies, "first") as server,
        _start(server, tmp_path, 1) as (rank, _, _),
    ):
        (tmp_path / "copies").rmdir()
        rank.save_to(copies, Version(1, 7))
        rank.tell_saved(Tier.STORAGE, Version(1, 7))
        assert received(rank.link, Durable) == Durable(step=7)
        assert rank.link.receive(0.1) is None
        (tmp_path / "copies").mkdir()


def test_a_tier_that_a_node_lacks_is_refused_by_name(tmp_path: Path, copies: Tier) -> None:
    """The trainer hears which tiers there are, and the service serves on."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0) as rank:
        rank.save_to(copies, Version(1, 7))
        refused = received(rank.link, RequestRefused)
        assert refused.error == "tier=COPIES: this node has MEMORY, STORAGE"
        rank.save(Version(1, 8))
        assert Version(1, 8) in node.master.hears_held()[1]


def test_under_a_master_each_node_commits_its_own_copies(tmp_path: Path, copies: Tier) -> None:
    """The master hears of no part and gives no grant: its messages are about storage."""
    tiers = three_tiers(copies, tmp_path / "copies")
    with served(tmp_path, tiers=tiers) as node, rank_of(node, tmp_path, 0) as rank:
        rank.save_to(copies, Version(1, 7))
        _comes_to_hold(tmp_path, {"1.7"})
        (tmp_path / "copies/1.8.new").write_text("in the way of a directory")
        rank.save_to(copies, Version(1, 8))
        rank.save(Version(1, 9), durable=True)
        assert node.master.hears("written").version.step == 9
        assert node.master.heard_nothing("written")
        (tmp_path / "copies/1.8.new").unlink()


def test_a_master_is_offered_a_third_tier_and_may_choose_it(tmp_path: Path, copies: Tier) -> None:
    """A node whose memory is gone verifies its copies at the master's word and starts there."""
    tiers = three_tiers(copies, tmp_path / "copies")
    with served(tmp_path, tiers=tiers) as node, rank_of(node, tmp_path, 0) as rank:
        rank.save_to(copies, Version(1, 7))
        _comes_to_hold(tmp_path, {"1.7"})
    with (
        served(tmp_path, "second", tiers=tiers) as node,
        rank_of(node, tmp_path, 0, round_number=2) as rank,
    ):
        rank.link.send(Restore())
        question = node.master.hears("asks")
        assert [one.tier for one in question.offers] == [Tier.MEMORY, copies, Tier.STORAGE]
        assert offered(question, copies) == (Version(1, 7),)
        node.word(plan(Version(1, 7), tier=copies, go=False), 2)
        assert node.master.hears("checked") == RestorePlanVerified(plan_id=5)
        node.word(plan(Version(1, 7), tier=copies, go=True), 2)
        start, descriptors = answered(rank.link, RestoreStart)
        images = _images(start, descriptors)
        assert (start.step, start.path, start.durable) == (7, "", False)
        assert images == {0: _content(7, images[0])}
