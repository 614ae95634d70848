"""Parts of steps that never come to anything: they go while the job runs, or when it is over."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpoints.led_nodes import (
    WAIT_SECONDS,
    Node,
    Rank,
    grant_of,
    plan,
    rank_of,
    received,
    save_all,
    served,
    two_nodes,
)
from checkpoints.sample_shards import begin, sample_step, save
from holdfast.flash.memory.slots import Version
from holdfast.flash.server.protocol import Restore, RestoreStart
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.owners import clear_up, left_behind
from holdfast_wire.messages import Tier


def _names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != "owners")


def _half(root: Path, step: int, number: str, lineage: int = 1) -> str:
    """Leave an attempt with one part, as a node does that was alone in saving it."""
    sample = sample_step(step, random.Random(step), lineage=lineage)
    return begin(Disk(), root, sample, number, ranks=1).folder


def test_a_step_that_a_rank_left_out_goes_when_a_newer_one_is_committed(tmp_path: Path) -> None:
    """It never gets all of its parts; it would stay for as long as this world trains."""
    root = tmp_path / "root"
    with two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        rank_0.save(Version(1, 5), durable=True)
        first.master.hears("written")
        assert _names(root) == ["step_5.tmp.1.w1"]
        mine, _ = save_all(Version(1, 7), (first, rank_0), (second, rank_1))
        assert first.grant(mine, "w1e1c1") == ""
        assert _names(root) == ["step_7"]


def test_an_older_step_with_all_parts_can_be_granted_after_a_newer_one(tmp_path: Path) -> None:
    """Its coordinator may be slower than the newer one's."""
    root = tmp_path / "root"
    with two_nodes(tmp_path) as (first, rank_0, second, rank_1):
        told = {}
        for step in (5, 7):
            told[step], _ = save_all(Version(1, step), (first, rank_0), (second, rank_1))
        first.word(grant_of(told[7], "w1e1c2"))
        assert first.master.hears("committed").error == ""
        second.word(grant_of(told[5], "w1e1c1"))
        assert second.master.hears("committed").error == ""
        assert _names(root) == ["step_5", "step_7"]


@contextmanager
def _two_until(folder: Path, *, over: bool) -> Iterator[tuple[Node, Rank, Node, Rank]]:
    """Two nodes of a job that is over, or not, when they end; the first one first."""
    with two_nodes(folder) as found:
        yield found
        for node in (found[0], found[2]):
            node.service.stop(over=over)
            node.thread.join(WAIT_SECONDS)
            assert not node.thread.is_alive()


@pytest.mark.parametrize("over", [True, False])
def test_what_a_job_had_begun_is_gone_when_it_is_over(*, tmp_path: Path, over: bool) -> None:
    """Half a step, a whole one that nobody granted, one whose coordinator failed; none of others.

    A node that ends while the job goes on leaves them: others may still commit them.
    """
    root = tmp_path / "root"
    with _two_until(tmp_path, over=over) as (first, rank_0, second, rank_1):
        save_all(Version(1, 5), (first, rank_0), (second, rank_1))
        mine, _ = save_all(Version(1, 6), (first, rank_0), (second, rank_1))
        rank_1.save(Version(1, 7), durable=True)
        second.master.hears("written")
        taken = root / "step_6.tmp.1.w1e1c1"
        (root / "step_6.tmp.1.w1").rename(taken)
        next(taken.glob("__0_*")).unlink()
        assert "was not committed" in first.grant(mine, "w1e1c1")
        others = [_half(root, 5, "w2e1c9"), _half(root, 5, "anothers")]
        begun = ["step_5.tmp.1.w1", "step_6.tmp.1.w1e1c1", "step_7.tmp.1.w1"]
        assert _names(root) == sorted([*others, *begun])
    assert _names(root) == sorted(others if over else [*others, *begun])


def test_a_step_written_beside_the_start_is_gone_when_the_job_ends_before_its_grant(
    tmp_path: Path,
) -> None:
    """A step written beside a start from memory is gone when the job ends before its grant."""
    root = tmp_path / "root"
    root.mkdir()
    with served(tmp_path) as node:
        with rank_of(node, root, 0, world=1) as rank:
            rank.save(Version(1, 3))
            node.master.hears_held()
        with rank_of(node, root, 0, world=1, round_number=2) as rank:
            rank.link.send(Restore())
            node.master.hears("asks")
            go = plan(plan_id=1, version=Version(1, 3), tier=Tier.MEMORY, go=True)
            node.word(go, 2)
            received(rank.link, RestoreStart)
            told = node.master.hears("written")
            assert (told.version, _names(root)) == (Version(1, 3), ["step_3.tmp.1.w2"])
        node.service.stop(over=True)
        node.thread.join(WAIT_SECONDS)
    assert _names(root) == []


def test_a_start_while_something_is_written_still_clears_up(tmp_path: Path) -> None:
    """It waits for that work; what was begun after the start was decided is not touched."""
    root = tmp_path / "root"
    root.mkdir()
    _half(root, 3, "w0")
    gate, done = threading.Event(), threading.Event()
    with served(tmp_path) as node, rank_of(node, root, 0, world=1, round_number=2) as rank:
        rank.link.send(Restore())
        node.master.hears("asks")

        def wait() -> None:
            gate.wait(WAIT_SECONDS)

        node.service.post(lambda: node.shared.worker.hand_out("wait", wait, lambda *_: None))
        node.word(plan(plan_id=1, version=None, go=True), 2)
        received(rank.link, RestoreStart)
        later = _half(root, 4, "h1c5")
        node.service.post(
            lambda: node.shared.worker.hand_out("end", lambda: None, lambda *_: done.set())
        )
        gate.set()
        assert done.wait(WAIT_SECONDS)
        assert _names(root) == [later]


class Shared(Disk):
    """A disk where another node deletes what this one has just begun to delete."""

    def rename(self, old: str, new: str) -> None:
        """Rename, and be overtaken."""
        super().rename(old, new)
        if "/.trash." in new:
            shutil.rmtree(new)


def test_two_nodes_that_sweep_at_once_leave_nothing(tmp_path: Path) -> None:
    """A sweep goes on past folders that the other sweep has taken."""
    for step in range(1, 4):
        _half(tmp_path, step, "w0")
    _half(tmp_path, 4, "w1")
    disk = Shared()
    clear_up(disk, str(tmp_path), left_behind(disk, str(tmp_path), "w1"))
    assert _names(tmp_path) == ["step_4.tmp.1.w1"]


def test_a_directory_that_several_delete_at_once_is_gone_for_all(tmp_path: Path) -> None:
    """Nobody fails because a file went a moment before."""
    disk, errors = Disk(), list[OSError]()
    for _ in range(5):
        folder = tmp_path / ".trash.x"
        for number in range(200):
            (folder / f"{number % 7}").mkdir(parents=True, exist_ok=True)
            (folder / f"{number % 7}" / f"{number}").touch()

        def delete(path: str = str(folder)) -> None:
            try:
                disk.remove_tree(path)
            except OSError as error:
                errors.append(error)

        threads = [threading.Thread(target=delete) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (_names(tmp_path), errors) == ([], [])


def test_a_commit_is_none_the_less_done_where_a_sweep_takes_what_it_replaced(
    tmp_path: Path,
) -> None:
    """The step of another lineage goes to the trash, which everybody may empty."""
    disk = Shared()
    for lineage in (1, 2):
        save(disk, tmp_path, sample_step(9, random.Random(lineage), lineage=lineage))
    assert _names(tmp_path) == ["step_9"]
