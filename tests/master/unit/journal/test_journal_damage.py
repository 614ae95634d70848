"""Damaged journals: what is intact is used, what is not is said, nothing is invented."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.journal import framing
from holdfast_master.journal.framing import Damage
from holdfast_master.journal.reader import join
from holdfast_master.journal.segments import JournalError, read_segment, read_segments, segment_path
from holdfast_wire import codec
from holdfast_wire.messages import (
    EventRecorded,
    JobEvent,
    JournalRecord,
    NodeJoined,
    SegmentOpened,
    WorldDecided,
)

JOB = "j1"


def header(sequence: int, epoch: int, *, job_uid: str = JOB, version: int = 4) -> JournalRecord:
    """Return the first record of a segment."""
    opened = SegmentOpened(
        format=version, epoch=epoch, incarnation=f"m{epoch}", job_uid=job_uid, version="0.1.0"
    )
    return JournalRecord(sequence=sequence, fact=opened)


def facts(first: int, last: int) -> list[JournalRecord]:
    """Return records of several sizes with these sequences."""
    kinds = (
        lambda at: NodeJoined(node_rank=at, agent_id="a" * (at % 7)),
        lambda at: EventRecorded(event=JobEvent(sequence=at, reason="Test", text="t" * (at % 50))),
        lambda at: WorldDecided(round=at, reason="r"),
    )
    return [JournalRecord(sequence=at, fact=kinds[at % 3](at)) for at in range(first, last + 1)]


def event(sequence: int, number: int) -> JournalRecord:
    """Return the record of an event with this number."""
    return JournalRecord(sequence=sequence, fact=EventRecorded(event=JobEvent(sequence=number)))


def write(directory: Path, epoch: int, records: list[JournalRecord]) -> Path:
    """Write a whole segment."""
    path = segment_path(directory, epoch)
    path.write_bytes(b"".join(framing.frame(codec.encode(record)) for record in records))
    return path


def borders(records: list[JournalRecord]) -> list[int]:
    """Return where the records of a segment begin, and where the last one ends."""
    sizes = (len(framing.frame(codec.encode(record))) for record in records)
    return list(itertools.accumulate(sizes, initial=0))


def first_segment(directory: Path, last: int = 12) -> tuple[Path, list[JournalRecord]]:
    """Write the segment of epoch 1 with sequences 1 to `last`."""
    records = [header(1, 1), *facts(2, last)]
    return write(directory, 1, records), records


def test_a_segment_that_is_cut_at_any_byte_gives_every_record_before_the_cut(
    tmp_path: Path,
) -> None:
    """A torn tail costs the record that it is in, and is called a torn tail."""
    path, records = first_segment(tmp_path)
    data = path.read_bytes()
    ends = borders(records)
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        segment = read_segment(path)
        whole = sum(end <= cut for end in ends) - 1
        assert list(segment.records) == records[:whole], f"cut at byte {cut}"
        assert segment.intact_bytes == ends[whole], f"cut at byte {cut}"
        assert bool(segment.broken) == (cut not in ends), f"cut at byte {cut}"
        assert not segment.corrupt, f"cut at byte {cut}"


def test_a_flipped_bit_anywhere_never_changes_a_record(tmp_path: Path) -> None:
    """Each single bit flip is found; the records before it are the ones that were written."""
    path, records = first_segment(tmp_path, last=8)
    data = path.read_bytes()
    ends = borders(records)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(damaged))
        segment = read_segment(path)
        before = sum(end <= bit // 8 for end in ends) - 1
        assert list(segment.records) == records[:before], f"bit {bit}"
        assert segment.broken, f"bit {bit}"
        # In the last record nothing tells a flip from a torn write.
        assert segment.corrupt == (before < len(records) - 1), f"bit {bit}"


@given(st.lists(st.binary(max_size=200)), st.binary(max_size=64))
def test_frames_are_read_back_as_they_were_written(records: list[bytes], tail: bytes) -> None:
    """Whatever follows the frames, they themselves come back unchanged and in order."""
    data = b"".join(map(framing.frame, records))
    scan = framing.scan(data + tail)
    assert list(scan.records[: len(records)]) == records
    assert scan.intact_bytes >= len(data)


def test_records_that_hold_the_mark_are_no_frames() -> None:
    """Text inside a damaged record that looks like a frame's beginning is not taken for one."""
    hidden = framing.MARK + bytes(8) + framing.MARK
    data = bytearray(framing.frame(hidden))
    data[-1] ^= 1
    assert framing.scan(bytes(data)) == framing.Scan((), 0, Damage.TORN)


def test_segments_are_joined_in_the_order_of_their_epochs(tmp_path: Path) -> None:
    """Ten comes after two, also where names sort the other way."""
    write(tmp_path, 10, [header(9, 10), *facts(10, 12)])
    write(tmp_path, 2, [header(1, 2), *facts(2, 8)])
    history = join(read_segments(tmp_path), JOB)
    assert [record.sequence for record in history.records] == list(range(1, 13))
    assert [past.epoch for past in history.masters] == [2, 10]
    assert history.masters[0].newest_event == 7
    assert history.notes == ()


def test_a_torn_tail_of_an_older_segment_is_no_gap(tmp_path: Path) -> None:
    """The successor read the intact part and went on from there."""
    path, _ = first_segment(tmp_path, last=5)
    path.write_bytes(path.read_bytes() + b"HfJ\x01half")
    write(tmp_path, 2, [header(6, 2), *facts(7, 9)])
    history = join(read_segments(tmp_path), JOB)
    assert [record.sequence for record in history.records] == list(range(1, 10))
    assert "unfinished record" in history.notes[0]


def test_what_a_zombie_wrote_after_its_successor_began_is_left_out(tmp_path: Path) -> None:
    """Of two records with one sequence the newer master's counts."""
    first_segment(tmp_path, last=9)
    write(tmp_path, 2, [header(6, 2), *facts(7, 8)])
    history = join(read_segments(tmp_path), JOB)
    assert [record.sequence for record in history.records] == list(range(1, 9))
    assert isinstance(history.records[5].fact, SegmentOpened)
    assert "4 records from 6 on were written by an older master" in history.notes[0]


def test_nothing_is_built_on_lost_records(tmp_path: Path) -> None:
    """Damage in the middle of an old segment leaves out the newer segments, and says so."""
    path, records = first_segment(tmp_path, last=9)
    damaged = bytearray(path.read_bytes())
    at = borders(records)[1] + len(framing.frame(b""))
    damaged[at] ^= 0x10
    path.write_bytes(bytes(damaged))
    write(tmp_path, 2, [header(10, 2), *facts(11, 12)])
    history = join(read_segments(tmp_path), JOB)
    assert [record.sequence for record in history.records] == [1]
    assert "damaged there, 7 intact records" in history.notes[0]
    assert "records 2 to 9 are lost" in history.notes[1]


def test_a_segment_without_an_intact_header_is_left_out(tmp_path: Path) -> None:
    """A master that died before its first record leaves nothing behind."""
    first_segment(tmp_path, last=5)
    segment_path(tmp_path, 2).touch()
    write(tmp_path, 3, [header(6, 3)])
    history = join(read_segments(tmp_path), JOB)
    assert len(history.records) == 6
    assert history.notes == ("journal-2.log holds no intact record and is left out",)


def test_a_record_of_a_newer_release_ends_the_readable_part(tmp_path: Path) -> None:
    """An enum number that is unknown here is damage, not a wrong guess."""
    path, records = first_segment(tmp_path, last=4)
    # PhaseChanged.phase = 99 in field 14 of a JournalRecord.
    unknown = b"\x08\x05" + b"\x72\x02" + b"\x08\x63"
    path.write_bytes(path.read_bytes() + framing.frame(unknown))
    segment = read_segment(path)
    assert list(segment.records) == records
    assert "PhaseChanged.phase is 99" in segment.broken


def test_a_number_that_is_left_out_ends_the_readable_part(tmp_path: Path) -> None:
    """Intact frames of which one is missing: a hand cut the file, nothing is built on the rest."""
    path = write(tmp_path, 1, [header(1, 1), *facts(2, 4), *facts(6, 8)])
    segment = read_segment(path)
    assert [record.sequence for record in segment.records] == [1, 2, 3, 4]
    assert segment.corrupt
    assert "record 6" in segment.broken
    assert "follows 4" in segment.broken


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([header(1, 1, job_uid="other")], "is of job 'other'"),
        ([header(1, 1, version=5)], "has format 5"),
        ([header(1, 5)], "is of epoch 5, its name says 1"),
    ],
    ids=["another job", "other format", "renamed"],
)
def test_a_journal_that_is_not_ours_is_refused_with_the_remedy(
    tmp_path: Path, records: list[JournalRecord], text: str
) -> None:
    """Nobody's facts are taken for this job's."""
    write(tmp_path, 1, records)
    with pytest.raises(JournalError, match=text):
        join(read_segments(tmp_path), JOB)


def test_a_file_that_has_lost_its_header_is_left_out(tmp_path: Path) -> None:
    """A journal file without a header is left out. The job goes on with the other files' facts."""
    write(tmp_path, 1, [header(1, 1), *facts(2, 3)])
    write(tmp_path, 2, facts(4, 5))
    history = join(read_segments(tmp_path), JOB)
    assert [record.sequence for record in history.records] == [1, 2, 3]
    assert history.lost
    (note,) = history.notes
    assert note.endswith("is left out: journal-2.log does not begin with its header")


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_decision_that_was_not_written_whole_counts_as_not_made(
    tmp_path: Path, kept: int
) -> None:
    """Whatever was torn off its end; the decisions before it hold, and so do their events."""
    made = [header(1, 1), *facts(2, 3)]
    decision = [dataclasses.replace(record, more=True) for record in facts(4, 6)]
    write(tmp_path, 1, [*made, *decision[:kept]])
    history = join(read_segments(tmp_path), JOB)
    assert list(history.records) == made
    assert not history.lost
    (note,) = history.notes
    assert note == (
        f"records 4 to {3 + kept} are the beginning of a decision whose end was not written, and "
        "are left out"
    )
    write(tmp_path, 2, [header(4, 2), *facts(5, 6)])
    again = join(read_segments(tmp_path), JOB)
    assert [record.sequence for record in again.records] == [1, 2, 3, 4, 5, 6]
    assert again.records[3].fact == header(4, 2).fact


def test_events_of_a_decision_that_is_left_out_are_not_waited_behind(tmp_path: Path) -> None:
    """Their numbers are given out again: a watcher that goes on behind them would miss others."""
    records = [header(1, 1), event(2, 1), dataclasses.replace(event(3, 2), more=True)]
    write(tmp_path, 1, records)
    (past,) = join(read_segments(tmp_path), JOB).masters
    assert past.newest_event == 1


def test_other_files_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    """Only journal-<epoch>.log is read."""
    (tmp_path / "journal-x.log").write_text("no")
    (tmp_path / "notes.txt").write_text("no")
    assert read_segments(tmp_path) == ()
    assert read_segments(tmp_path / "absent") == ()
