"""The journal's writer: order, owners, and disks that refuse."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_master.journal import writer as journal_module
from holdfast_master.journal.segments import (
    EpochRefusedError,
    JournalError,
    read_segment,
    segment_path,
)
from holdfast_master.journal.writer import RETRY_SECONDS, Journal
from holdfast_wire import codec
from holdfast_wire.messages import JournalRecord, NodeJoined, SegmentOpened
from masters.journals import on_own_disk


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(epoch: int, incarnation: str) -> bytes:
    """Return a segment's first record."""
    fact = SegmentOpened(format=4, epoch=epoch, incarnation=incarnation, job_uid="j1")
    return codec.encode(JournalRecord(sequence=1, fact=fact))


def record(sequence: int, size: int = 0) -> bytes:
    """Return a record of about `size` bytes."""
    fact = NodeJoined(node_rank=sequence, host="h" * size)
    return codec.encode(JournalRecord(sequence=sequence, fact=fact))


def sequences(directory: Path, epoch: int = 1) -> list[int]:
    """Return what a reader finds in a segment."""
    return [item.sequence for item in read_segment(segment_path(directory, epoch)).records]


@pytest.fixture
def small_files() -> Iterator[None]:
    """Let no file grow beyond 4,000 bytes, as a full disk would."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def lift_limit() -> None:
    """Give the disk its room back."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def test_a_batch_is_on_disk_when_commit_returns(tmp_path: Path) -> None:
    """All records of a batch are there, in order, whether one or all of them are durable."""
    journal = Journal(tmp_path, 1, "m1")
    journal.commit([opened(1, "m1"), record(2)], durable=True)
    journal.commit([record(3)], durable=False)
    assert sequences(tmp_path) == [1, 2, 3]
    journal.close()
    assert sequences(tmp_path) == [1, 2, 3]


def test_a_durable_batch_is_synced_once_and_another_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch costs one fdatasync at most."""
    calls: list[int] = []
    real = os.fdatasync

    def count(file: int) -> None:
        calls.append(file)
        real(file)

    monkeypatch.setattr(os, "fdatasync", count)
    journal = Journal(tmp_path, 1, "m1")
    journal.commit([opened(1, "m1"), *map(record, range(2, 50))], durable=True)
    assert len(calls) == 1
    journal.commit([record(50), record(51)], durable=False)
    assert len(calls) == 1
    journal.close()
    assert len(calls) == 2


def test_directory_and_file_are_private(tmp_path: Path) -> None:
    """Nobody else on the machine reads what a job does."""
    directory = tmp_path / "deep" / "journal"
    Journal(directory, 1, "m1").close()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(segment_path(directory, 1).stat().st_mode) == 0o600


def test_an_epoch_belongs_to_one_master(tmp_path: Path) -> None:
    """Another master with the same epoch is refused, also long after the first one has gone."""
    first = Journal(tmp_path, 1, "m1")
    first.commit([opened(1, "m1")], durable=True)
    with pytest.raises(EpochRefusedError, match=r"written by the master m1, this one is m2"):
        Journal(tmp_path, 1, "m2")
    first.close()
    with pytest.raises(EpochRefusedError, match="give each master process its own epoch"):
        Journal(tmp_path, 1, "m2")


def test_two_masters_that_start_at_once_with_one_epoch_are_told_apart(tmp_path: Path) -> None:
    """Before the first record is written, the lock decides."""
    first = Journal(tmp_path, 1, "m1")
    with pytest.raises(EpochRefusedError, match="being written by another master"):
        Journal(tmp_path, 1, "m2")
    first.close()


def test_an_older_epoch_is_refused(tmp_path: Path) -> None:
    """A master that is started with yesterday's epoch must not act."""
    Journal(tmp_path, 7, "m7").close()
    with pytest.raises(
        EpochRefusedError, match="has a segment of epoch 7, this master has epoch 6"
    ):
        Journal(tmp_path, 6, "m6")


def test_the_same_master_goes_on_after_its_torn_tail(tmp_path: Path) -> None:
    """A restart with the same id cuts the unfinished record off and appends."""
    journal = Journal(tmp_path, 1, "m1")
    journal.commit([opened(1, "m1"), record(2)], durable=True)
    journal.close()
    path = segment_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-3])
    again = Journal(tmp_path, 1, "m1")
    again.commit([record(2), record(3)], durable=True)
    again.close()
    assert sequences(tmp_path) == [1, 2, 3]
    assert read_segment(path).broken == ""


def test_a_full_disk_is_said_and_nothing_is_lost_when_it_has_room_again(
    tmp_path: Path, small_files: None
) -> None:
    """Records wait while the disk is full; the file never holds half of one."""
    clock = Clock()
    journal = Journal(tmp_path, 1, "m1", clock)
    journal.commit([opened(1, "m1")], durable=True)
    journal.commit([record(2, 3_000)], durable=True)
    assert journal.trouble == ""
    journal.commit([record(3, 3_000)], durable=True)
    assert "File too large" in journal.trouble
    assert sequences(tmp_path) == [1, 2]
    assert read_segment(segment_path(tmp_path, 1)).broken == ""
    journal.commit([record(4)], durable=True)
    lift_limit()
    journal.commit([record(5)], durable=False)
    assert journal.trouble, "it is not tried again at once"
    clock.now += RETRY_SECONDS
    journal.commit([], durable=False)
    assert journal.trouble == ""
    assert sequences(tmp_path) == [1, 2, 3, 4, 5]
    journal.close()


def test_a_disk_that_stays_full_costs_bounded_memory(
    tmp_path: Path, small_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound the journal of this epoch is given up, and what was written stays whole."""
    monkeypatch.setattr(journal_module, "MAX_PENDING_BYTES", 20_000)
    journal = Journal(tmp_path, 1, "m1")
    journal.commit([opened(1, "m1"), record(2)], durable=True)
    for sequence in range(3, 40):
        journal.commit([record(sequence, 1_000)], durable=True)
    assert journal.trouble.endswith("given up")
    lift_limit()
    journal.commit([record(40)], durable=True)
    journal.close()
    found = sequences(tmp_path)
    assert found == list(range(1, len(found) + 1))
    assert found[-1] < 40, "nothing is written behind a gap"


def test_a_failed_sync_writes_everything_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed fdatasync the kernel's copy is not trusted."""
    clock = Clock()
    journal = Journal(tmp_path, 1, "m1", clock)
    journal.commit([opened(1, "m1")], durable=True)

    def fail(_file: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        journal.commit([record(2)], durable=True)
    assert "Input/output error" in journal.trouble
    assert sequences(tmp_path) == [1]
    clock.now += RETRY_SECONDS
    journal.commit([record(3)], durable=True)
    assert sequences(tmp_path) == [1, 2, 3]
    assert journal.trouble == ""
    journal.close()


IN_NAMESPACE = """
import os, sys
from pathlib import Path
from holdfast_master.journal.segments import read_segment, segment_path
from holdfast_master.journal.writer import Journal
from holdfast_wire import codec
from holdfast_wire.messages import JournalRecord, NodeJoined, SegmentOpened

os.system("mount -t tmpfs -o size=16k none " + sys.argv[1]) == 0 or sys.exit(77)
directory = Path(sys.argv[1])
fact = SegmentOpened(format=4, epoch=1, incarnation="m1", job_uid="j1")
clock = [0.0]
journal = Journal(directory, 1, "m1", lambda: clock[0])
journal.commit([codec.encode(JournalRecord(sequence=1, fact=fact))], durable=True)
sent = 1
while not journal.trouble:
    sent += 1
    join = NodeJoined(node_rank=sent, host="h" * 900)
    journal.commit([codec.encode(JournalRecord(sequence=sent, fact=join))], durable=True)
print("trouble", journal.trouble)
found = read_segment(segment_path(directory, 1))
print("while full", len(found.records) == sent - 1, found.broken == "")
assert os.system("mount -o remount,size=1m " + sys.argv[1]) == 0
clock[0] += 2
journal.commit([], durable=True)
print("after", journal.trouble == "", len(read_segment(segment_path(directory, 1)).records) == sent)
journal.close()
assert os.system("mount -o remount,ro " + sys.argv[1]) == 0
late = Journal(directory, 2, "m2", lambda: clock[0])
late.commit([b"x"], durable=True)
print("read-only", late.trouble)
"""


def test_a_real_full_disk_and_a_read_only_one(tmp_path: Path) -> None:
    """On a tiny file system: full is said, room is used, read-only is said and survived."""
    lines = on_own_disk(tmp_path, IN_NAMESPACE)
    assert "No space left on device" in lines[0]
    assert lines[1:3] == ["while full True True", "after True True"]
    assert "Read-only file system" in lines[3]


def test_a_journal_directory_that_is_a_file_is_an_error_of_the_configuration(
    tmp_path: Path,
) -> None:
    """Nothing but a person can put that right."""
    path = tmp_path / "journal"
    path.touch()
    with pytest.raises(JournalError, match="cannot be read: Not a directory"):
        Journal(path, 1, "m1")
