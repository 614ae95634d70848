"""Time of a compaction of the journal, and reports where it does not work."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast_master.job.state.apply import apply
from holdfast_master.job.state.job_state import JobState
from holdfast_master.journal import filesystem
from holdfast_master.journal.compaction import Retention
from holdfast_master.journal.compaction_policy import (
    RETRY_SECONDS,
    SLOW_SECONDS,
    Housekeeper,
)
from holdfast_master.journal.reader import read_history
from holdfast_master.journal.segments import SegmentKind, listing
from holdfast_master.journal.writer import Journal
from holdfast_wire import codec
from holdfast_wire.messages import JournalRecord, NodeExcluded, SegmentOpened

HEAD = SegmentOpened(format=4, epoch=1, incarnation="m1", job_uid="j1")
DEADLINE = 20.0


class Keeping:
    """A journal with its housekeeper, a clock, and what people are told."""

    def __init__(self, directory: Path, tail_bytes: int = 0) -> None:
        self.directory = directory
        self.now = 1000.0
        self.said: list[tuple[str, str]] = []
        self.state = JobState(event_limit=10, incident_limit=10)
        self.journal = Journal(directory, 1, "m1", lambda: self.now)
        keep = Retention(seconds=0.0, limit_bytes=0)
        self.keeper = Housekeeper(directory, 4096, keep, HEAD, (), tail_bytes, lambda: self.now)
        self.write(HEAD)

    def write(self, fact: SegmentOpened | NodeExcluded) -> None:
        """Take a fact as the core and the loop do."""
        record = JournalRecord(sequence=self.state.sequence + 1, fact=fact)
        apply(self.state, record)
        self.journal.commit([codec.encode(record)], durable=True)
        self.batch()

    def batch(self) -> None:
        """End a batch."""
        self.keeper.after_batch(self.journal, self.state, lambda *said: self.said.append(said))

    def fill(self, count: int = 60) -> None:
        """Write about 6,000 bytes; every fact is another one."""
        for _ in range(count):
            name = f"node-{self.state.sequence % 7}"
            self.write(NodeExcluded(node=name, reason="r" * 60))

    def bases(self) -> list[int]:
        """Return the sequences of the bases."""
        return [name.number for name in listing(self.directory) if name.kind is SegmentKind.BASE]


def test_a_base_is_written_after_so_many_bytes_and_the_files_stay_few(tmp_path: Path) -> None:
    """However long it goes on, there is a base or two and a short tail."""
    keeping = Keeping(tmp_path)
    keeping.fill(20)
    assert keeping.bases() == []
    bases = set[int]()
    for _ in range(10):
        keeping.fill()
        keeping.keeper.wait(DEADLINE)
        bases.update(keeping.bases())
    keeping.journal.close()
    assert len(bases) >= 5
    assert len(keeping.bases()) == 1
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20_000
    state = JobState(event_limit=10, incident_limit=10)
    for record in read_history(tmp_path, "j1").records:
        apply(state, record)
    assert state == keeping.state
    assert keeping.said == []


def test_what_earlier_masters_left_counts(tmp_path: Path) -> None:
    """Many short-lived masters fill a disk as one does."""
    keeping = Keeping(tmp_path, tail_bytes=5000)
    keeping.keeper.wait(DEADLINE)
    assert keeping.bases() == [1]


def test_a_disk_that_refuses_is_said_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event when it begins, one when it is over; nothing is lost in between."""
    keeping = Keeping(tmp_path)

    def refuse(_path: Path) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(filesystem, "create", refuse)
        for _ in range(3):
            keeping.now += RETRY_SECONDS
            keeping.fill()
            keeping.keeper.wait(DEADLINE)
    assert [reason for reason, _ in keeping.said] == ["JournalNotCompacted"]
    assert "No space left on device; old files stay: make room" in keeping.said[0][1]
    keeping.batch()
    keeping.keeper.wait(DEADLINE)
    assert keeping.bases() == [], "it is not tried again at once"
    keeping.now += RETRY_SECONDS
    keeping.batch()
    keeping.keeper.wait(DEADLINE)
    keeping.fill(1)
    keeping.keeper.wait(DEADLINE)
    assert [reason for reason, _ in keeping.said] == ["JournalNotCompacted", "JournalMended"]
    assert len(keeping.bases()) == 1
    keeping.journal.close()
    assert read_history(tmp_path, "j1").records[-1].sequence == keeping.state.sequence


def test_a_slow_disk_is_said_and_commits_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits for a base; nothing is removed before it is there."""
    keeping = Keeping(tmp_path)
    go_on, waits = threading.Event(), threading.Event()
    real = filesystem.create

    def wait(path: Path) -> int:
        if path.name.startswith(".base"):
            waits.set()
            assert go_on.wait(DEADLINE)
        return real(path)

    monkeypatch.setattr(filesystem, "create", wait)
    keeping.fill()
    assert waits.wait(DEADLINE)
    keeping.fill(5)
    assert keeping.said == []
    keeping.now += SLOW_SECONDS + 1
    keeping.fill(5)
    assert [reason for reason, _ in keeping.said] == ["JournalNotCompacted"]
    assert "a slow disk; old files stay meanwhile" in keeping.said[0][1]
    assert (tmp_path / "journal-1.log").exists()
    go_on.set()
    keeping.keeper.wait(DEADLINE)
    assert len(keeping.bases()) == 1
    assert not (tmp_path / "journal-1.log").exists()
    keeping.journal.close()


def test_a_new_file_that_cannot_be_begun_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base stands, but the old file goes on growing: people must know."""
    keeping = Keeping(tmp_path)
    real = filesystem.rename

    def refuse(old: Path, new: Path) -> None:
        if new.name.startswith("journal"):
            raise OSError(5, "Input/output error")
        real(old, new)

    monkeypatch.setattr(filesystem, "rename", refuse)
    for _ in range(2):
        keeping.fill()
        keeping.keeper.wait(DEADLINE)
    keeping.batch()
    assert [reason for reason, _ in keeping.said] == ["JournalNotCompacted"]
    assert "Input/output error" in keeping.said[0][1]
    assert (tmp_path / "journal-1.log").exists()
    keeping.journal.close()
    assert read_history(tmp_path, "j1").records[-1].sequence == keeping.state.sequence
