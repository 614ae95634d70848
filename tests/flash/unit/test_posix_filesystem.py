"""The real file system does what the forgetful one is told to do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from checkpoints.sample_shards import sample_step, save
from holdfast.flash.memory.slots import Version
from holdfast.flash.storage.commit import Attempt, open_attempt, sweep
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import steps
from holdfast.flash.storage.reader import verify


def _save(root: Path, step: int, lineage: int = 1) -> object:
    sample = sample_step(step, random.Random(step + lineage), lineage=lineage)
    return save(Disk(), root, sample)


def test_a_step_is_committed_with_odd_lengths(tmp_path: Path) -> None:
    """Written past the cache in whole pages, then cut to the byte; every hash holds."""
    manifest = _save(tmp_path, 10)
    assert verify(Disk(), str(tmp_path / "step_10")) == manifest
    assert sorted(path.name for path in (tmp_path / "step_10").iterdir()) == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "holdfast.json",
    ]


def test_a_step_of_another_lineage_is_exchanged(tmp_path: Path) -> None:
    """RENAME_EXCHANGE and RENAME_NOREPLACE work here."""
    _save(tmp_path, 10, lineage=1)
    newer = _save(tmp_path, 10, lineage=2)
    assert verify(Disk(), str(tmp_path / "step_10")) == newer
    assert [path.name for path in tmp_path.iterdir()] == ["step_10"]


def test_what_died_is_swept_and_what_lives_is_not(tmp_path: Path) -> None:
    """Trash and foreign attempts go; the named attempt, steps and the user's files stay."""
    disk = Disk()
    _save(tmp_path, 10)
    for number in ("dead", "live"):
        open_attempt(disk, str(tmp_path), Attempt(version=Version(1, 20), number=number))
    (tmp_path / ".trash.x").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    sweep(disk, str(tmp_path), lambda attempt: attempt.number == "live")
    assert steps(disk, str(tmp_path)) == [10]
    assert {path.name for path in tmp_path.iterdir()} == {
        "step_10",
        "step_20.tmp.1.live",
        "notes.txt",
    }


def test_a_rename_never_replaces_a_step(tmp_path: Path) -> None:
    """Also where the kernel cannot say so, because a committed directory is never empty."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with pytest.raises(FileExistsError):
        Disk().rename_new(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b" / "file").read_text() == "b"
