"""Two jobs in one directory of checkpoints: the newer has it, and the older one is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from checkpoints.led_nodes import Node, Rank, announced, rank_of, received, save_all, served
from checkpoints.small_models import state_of
from holdfast.flash.memory.slots import Version
from holdfast.flash.server.protocol import RequestRefused, Restore
from holdfast.flash.storage import owners
from holdfast.flash.storage.commit import CommitError
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import steps
from holdfast.flash.storage.reader import newest
from holdfast.flash.trainer.client import CheckpointError
from holdfast_wire.messages import Tier
from holdfast_wire.tiers import offered

OLD, NEW = "0b1d-old", "77aa-new"


def _commit(node: Node, rank: Rank, version: Version) -> str:
    """Save a step and let the master grant it; return why it was not committed."""
    (parts,) = save_all(version, (node, rank))
    error = node.grant(parts, f"{parts.attempt}e1c{version.step}")
    node.word(announced(version, error))
    return error


@pytest.fixture
def two_jobs(tmp_path: Path) -> Iterator[tuple[Node, Rank, Node, Rank]]:
    """An older job that has saved step 5, and a newer one that has not saved yet."""
    with (
        served(tmp_path, "old", job=OLD) as old,
        served(tmp_path, "new", job=NEW) as new,
        rank_of(old, tmp_path, 0, world=1) as rank,
        rank_of(new, tmp_path, 0, world=1) as other,
    ):
        assert _commit(old, rank, Version(1, 5)) == ""
        yield old, rank, new, other


def test_the_newer_job_has_the_directory_and_the_older_replaces_nothing(
    two_jobs: tuple[Node, Rank, Node, Rank], tmp_path: Path
) -> None:
    """The older one's master hears which job it is, and how to have it otherwise."""
    old, rank, new, other = two_jobs
    assert _commit(new, other, Version(6, 7)) == ""
    error = _commit(old, rank, Version(1, 7))
    assert error.startswith(f"{tmp_path} belongs to job {NEW}, which began to save there after")
    assert f"delete {tmp_path}/owners/2.{NEW}" in error
    found, _ = newest(Disk(), str(tmp_path))
    assert found is not None
    assert found.version == Version(6, 7)
    assert _commit(new, other, Version(6, 8)) == ""


def test_the_older_job_starts_from_nothing_of_the_newer_ones(
    two_jobs: tuple[Node, Rank, Node, Rank], tmp_path: Path
) -> None:
    """It would go on with another job's training; the newer one may start from the older's."""
    old, rank, new, other = two_jobs
    other.link.send(Restore())
    question = new.master.hears("asks")
    assert offered(question, Tier.STORAGE) == (Version(1, 5),)
    assert _commit(new, other, Version(6, 7)) == ""
    rank.link.close()  # its world has ended, and a new one begins
    with rank_of(old, tmp_path, 0, world=1, round_number=2) as again:
        again.link.send(Restore())
        refused = received(again.link, RequestRefused)
        assert f"belongs to job {NEW}" in refused.error
        assert old.master.heard_nothing("asks")


def test_the_file_that_the_error_names_gives_the_directory_back(
    two_jobs: tuple[Node, Rank, Node, Rank], tmp_path: Path
) -> None:
    """Without a restart of anything."""
    old, rank, new, other = two_jobs
    assert _commit(new, other, Version(6, 7)) == ""
    (tmp_path / "owners" / f"2.{NEW}").unlink()
    assert _commit(old, rank, Version(1, 9)) == ""


def test_of_two_runs_without_an_agent_the_older_one_is_told_too(tmp_path: Path) -> None:
    """The script that was started second saves; in the first one `wait` raises."""
    model, _ = state_of()
    with holdfast.Checkpointer(tmp_path, model=model) as first:
        first.save(1)
        first.wait()
        with holdfast.Checkpointer(tmp_path, model=model) as second:
            assert second.load() == 1
            second.save(2)
            second.wait()
            first.save(2)
            with pytest.raises(CheckpointError, match="belongs to job"):
                first.wait()
            second.save(3)
    assert steps(Disk(), str(tmp_path)) == [1, 2, 3]


def test_of_two_jobs_that_begin_at_once_one_has_the_directory(tmp_path: Path) -> None:
    """Whoever comes first: from then on each commit of the other fails."""
    for round_number in range(50):
        root = tmp_path / str(round_number)
        root.mkdir()
        names, barrier = [f"job{n}" for n in range(4)], threading.Barrier(4)

        def begin(name: str, root: Path = root, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            try:
                owners.take(Disk(), str(root), name)
            except CommitError as error:
                assert "belongs to job" in str(error)  # noqa: PT017 - in a thread

        threads = [threading.Thread(target=begin, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        free = [one for one in names if not owners.superseded(Disk(), str(root), one)]
        known = {path.name.partition(".")[2] for path in (root / "owners").iterdir()}
        assert known == set(names)
        assert len(free) == 1


def test_only_the_last_jobs_are_remembered(tmp_path: Path) -> None:
    """A directory that a thousand jobs went through does not hold a thousand files."""
    for number in range(200):
        owners.take(Disk(), str(tmp_path), f"job{number}")
    left = sorted(int(path.name.partition(".")[0]) for path in (tmp_path / "owners").iterdir())
    assert left == list(range(200 - len(left) + 1, 201))
    assert len(left) <= 64
    assert owners.superseded(Disk(), str(tmp_path), "job198")


@pytest.mark.parametrize("name", ["a/b", "../../x", "job uid", "x" * 300, "1.2"])
def test_a_job_may_be_called_anything(tmp_path: Path, name: str) -> None:
    """A job's name that makes no file's name is written otherwise and known again."""
    owners.take(Disk(), str(tmp_path), name)
    owners.take(Disk(), str(tmp_path), name)
    assert len(list((tmp_path / "owners").iterdir())) == 1
    owners.take(Disk(), str(tmp_path), "next")
    with pytest.raises(CommitError, match="belongs to job next"):
        owners.take(Disk(), str(tmp_path), name)
    assert [path.name for path in tmp_path.iterdir()] == ["owners"]
