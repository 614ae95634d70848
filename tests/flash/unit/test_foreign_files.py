"""Directories of checkpoints that people and disks have changed: copies, files, bad places."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from checkpoints.led_nodes import alone, connected, received
from checkpoints.sample_shards import sample_step, save
from holdfast.flash.memory.slots import Version
from holdfast.flash.server.protocol import Restore, RestoreStart
from holdfast.flash.storage import owners
from holdfast.flash.storage.commit import CommitError
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.reader import committed, newest
from holdfast.flash.storage.retention import Retainer
from holdfast_wire.messages.spec import CheckpointPolicy

WAIT_SECONDS = 30.0


def _save(root: Path, step: int) -> None:
    save(Disk(), root, sample_step(step, random.Random(step)))


def _steps(root: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in root.glob("step_*"))


def test_a_copy_under_the_name_of_a_newer_step_is_not_taken_for_it(tmp_path: Path) -> None:
    """The step announced last is the newest. A note gives the reason against the copy."""
    for step in (10, 20):
        _save(tmp_path, step)
    shutil.copytree(tmp_path / "step_10", tmp_path / "step_99")
    found, (note,) = newest(Disk(), str(tmp_path))
    assert found is not None
    assert found.version == Version(1, 20)
    assert note.startswith("step 99 was passed over: ")
    assert "holds step 10" in note
    assert committed(Disk(), str(tmp_path), 16) == [Version(1, 20), Version(1, 10)]


def test_a_copy_is_none_of_those_that_retention_leaves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As many as told stay beside it, which a load can take."""
    for step in (10, 20):
        _save(tmp_path, step)
    shutil.copytree(tmp_path / "step_10", tmp_path / "step_29")
    _save(tmp_path, 30)
    Retainer(Disk(), str(tmp_path), CheckpointPolicy(keep_last=2)).delete_old(30)
    assert _steps(tmp_path) == [20, 29, 30]
    assert "retention leaves step 29 alone" in caplog.text


def test_a_step_that_is_a_link_goes_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    """Somebody moved it to a larger disk; nothing else is kept from going by that."""
    root, larger = tmp_path / "ck", tmp_path / "larger"
    root.mkdir()
    for step in (10, 20, 30):
        _save(root, step)
    (root / "step_10").rename(larger)
    (root / "step_10").symlink_to(larger)
    Retainer(Disk(), str(root), CheckpointPolicy(keep_last=1)).delete_old(30)
    assert [path.name for path in root.iterdir()] == ["step_30"]
    assert (larger / "holdfast.json").is_file()


class Shrinking(Disk):
    """Cuts a file when it is opened, as somebody might at any moment."""

    def open(self, path: str) -> int:
        """Open it, and cut it."""
        handle = super().open(path)
        if "step_20" in path:
            os.truncate(path, 100)
        return handle


class Unreadable(Disk):
    """Has a bad place in one file."""

    def read_at(self, handle: int, at: int, buffer: memoryview) -> int:
        """Fail where the place is."""
        if "step_20" in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read_at(handle, at, buffer)


@pytest.mark.parametrize("disk", [Shrinking(), Unreadable()], ids=["shorter", "unreadable"])
def test_what_cannot_be_read_while_it_is_compared_is_damage(tmp_path: Path, disk: Disk) -> None:
    """Through a mapping it would be a SIGBUS: the agent's end, again at each restart."""
    for step in (10, 20):
        _save(tmp_path, step)
    found, (note,) = newest(disk, str(tmp_path))
    assert found is not None
    assert found.version == Version(1, 10)
    assert note.startswith("step 20 was passed over: ")


class ReadOnly(Disk):
    """Nothing can be removed."""

    def remove_tree(self, path: str) -> None:
        """Refuse."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


def test_a_directory_that_is_read_only_is_started_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Remains of a deletion stay in a read-only directory. A load starts from it all the same."""
    _save(tmp_path, 10)
    (tmp_path / ".trash.abc").mkdir()
    with (
        alone(tmp_path / "keeper", disk=ReadOnly()) as server,
        connected(server, tmp_path, 0, world=1) as rank,
    ):
        rank.link.send(Restore())
        assert received(rank.link, RestoreStart).step == 10
    assert "earlier worlds' parts stay: " in caplog.text


def test_retention_that_fails_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory would fill up and nobody would know why."""
    for step in (1, 2, 3):
        _save(tmp_path, step)
    (tmp_path / "tags" / "best").mkdir(parents=True)
    retainer = Retainer(Disk(), str(tmp_path), CheckpointPolicy(keep_last=1))
    retainer.delete_old(3)
    retainer.delete_old(3)
    assert _steps(tmp_path) == [1, 2, 3]
    (said,) = caplog.messages
    assert said.startswith(f"old steps stay in {tmp_path}: ")
    assert "tags/best" in said
    (tmp_path / "tags" / "best").rmdir()
    retainer.delete_old(3)
    assert _steps(tmp_path) == [3]


def test_a_file_in_the_place_of_the_owners_is_named_with_what_to_do(tmp_path: Path) -> None:
    """Both by who commits and by who starts."""
    (tmp_path / "owners").write_text("mine")
    said = rf"{tmp_path}/owners is a file: .*move it away"
    with pytest.raises(CommitError, match=said):
        owners.take(Disk(), str(tmp_path), "a")
    with pytest.raises(OSError, match=said):
        owners.superseded(Disk(), str(tmp_path), "a")
    assert (tmp_path / "owners").read_text() == "mine"


class Twice(Disk):
    """Another keeper of the same job is at it in the same moment, or a server answers late."""

    def create(self, path: str, *, direct: bool) -> int:
        """Make the file before it is made."""
        Path(path).touch()
        return super().create(path, direct=direct)


def test_two_keepers_of_a_job_may_enter_it_at_once(tmp_path: Path) -> None:
    """The file is the job's, whoever made it."""
    owners.take(Twice(), str(tmp_path), "a")
    assert [path.name for path in (tmp_path / "owners").iterdir()] == ["1.a"]
