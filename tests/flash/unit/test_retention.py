"""Retention deletes what it has read, and leaves alone what a newer release wrote."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import holdfast
from checkpoints.sample_shards import begin, make_newer, sample_step, save
from checkpoints.small_models import state_of
from holdfast.flash.memory.slots import Version
from holdfast.flash.storage.commit import Attempt, sweep
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import MANIFEST_NAME
from holdfast.flash.storage.retention import Retainer
from holdfast_wire.messages.spec import CheckpointPolicy


def _begin(root: Path, step: int, number: str = "0") -> Attempt:
    """Write the parts of a step and commit nothing."""
    return begin(Disk(), root, sample_step(step, random.Random(step)), number)


def _save(root: Path, step: int) -> None:
    save(Disk(), root, sample_step(step, random.Random(step)))


def _steps(root: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in root.glob("step_*"))


@pytest.mark.parametrize("how", ["newer", "damaged", "unreadable"])
def test_a_step_that_cannot_be_read_neither_goes_nor_counts_and_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """It may be somebody's last; as many as told stay beside it."""
    retainer = Retainer(Disk(), str(tmp_path), CheckpointPolicy(keep_last=2))
    for step in (1, 2, 3):
        _save(tmp_path, step)
    file = tmp_path / "step_2" / MANIFEST_NAME
    if how == "newer":
        make_newer(file)
    elif how == "damaged":
        file.write_bytes(file.read_bytes().replace(b"lengths", b"lengthz"))
    else:
        file.unlink()
        file.symlink_to(file)
    retainer.delete_old(3)
    assert _steps(tmp_path) == [1, 2, 3], "two that can be read"
    for step in (4, 5):
        _save(tmp_path, step)
        retainer.delete_old(step)
    assert _steps(tmp_path) == [2, 4, 5]
    (said,) = caplog.records
    assert "retention leaves step 2 alone: " in said.getMessage()
    assert "newer one wrote this" in said.getMessage() or how != "newer"


def test_steps_that_stay_anyway_are_not_read(tmp_path: Path) -> None:
    """There may be thousands, with megabytes of manifest each; every other one is read once."""

    class Counting(Disk):
        """Notes what is read."""

        def __init__(self) -> None:
            """Begin."""
            self.read_files: list[str] = []

        def read(self, path: str) -> bytes:
            """Read, and note."""
            self.read_files.append(Path(path).parent.name)
            return super().read(path)

    disk = Counting()
    settings = CheckpointPolicy(keep_last=2, keep_every=10)
    retainer = Retainer(disk, str(tmp_path), settings)
    for step in (10, 20, 25, 26, 27):
        _save(tmp_path, step)
    for _ in range(2):
        retainer.delete_old(27)
    assert sorted(disk.read_files) == ["step_25", "step_26"]
    assert _steps(tmp_path) == [10, 20, 26, 27]


def test_a_newer_releases_half_step_is_not_swept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The sweep leaves a newer release's half step alone. It removes one of its own release."""
    newer, own = _begin(tmp_path, 5, "newer"), _begin(tmp_path, 6, "own")
    described = tmp_path / newer.folder / ".shard.0.json"
    described.write_bytes(b'{"hash":"0","checkpoint":{"format":3}}')
    for _ in range(2):
        sweep(Disk(), str(tmp_path), lambda _: False)
    assert [path.name for path in tmp_path.iterdir()] == [newer.folder]
    assert own.version == Version(1, 6)
    (said,) = caplog.records
    assert f"{newer.folder} is left alone: " in said.getMessage()


@pytest.mark.train
def test_a_job_that_never_loads_deletes_no_newer_releases_step(tmp_path: Path) -> None:
    """Nobody looked at the directory before the first commit's retention did."""
    model, _ = state_of()
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        flash.save(1)
        flash.save(2)
    make_newer(tmp_path / "step_1" / MANIFEST_NAME)
    with holdfast.Checkpointer(tmp_path, model=model, keep_last=1) as flash:
        for step in (3, 4):
            flash.save(step)
    assert _steps(tmp_path) == [1, 4]
