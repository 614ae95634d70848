"""What earlier masters of the job wrote: the segments of a journal directory, read and joined.

Belongs here: reading, and saying what is wrong. Does not belong here: writing (see `journal`), and
what the facts mean (the core folds them).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from holdfast_master import framing
from holdfast_master.framing import Damage
from holdfast_wire import codec
from holdfast_wire.messages import EventRecorded, JournalRecord, SegmentOpened

FORMAT = 1
"""Newest `SegmentOpened.format` that this release reads."""
_NAME = re.compile(r"journal-(\d+)\.log")


class JournalError(Exception):
    """The journal cannot be used at all: names the file, what is wrong and the remedy."""


class EpochRefusedError(JournalError):
    """Another master has this epoch or a newer one: this process must not act."""


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """What one master process wrote."""

    path: Path
    epoch: int
    records: tuple[JournalRecord, ...]
    """Intact ones; the first is a SegmentOpened."""
    intact_bytes: int
    broken: str = ""
    """What is wrong after the intact records, for people; empty: nothing."""
    corrupt: bool = False
    """True: facts are missing that had been written whole."""

    @property
    def opened(self) -> SegmentOpened | None:
        """The segment's header; None where not even that is intact."""
        fact = self.records[0].fact if self.records else None
        return fact if isinstance(fact, SegmentOpened) else None


@dataclasses.dataclass(frozen=True, slots=True)
class PastMaster:
    """An earlier master, and the newest event of it that the journal kept."""

    epoch: int
    incarnation: str
    newest_event: int


@dataclasses.dataclass(frozen=True, slots=True)
class History:
    """All segments, joined to one sequence of records."""

    records: tuple[JournalRecord, ...] = ()
    masters: tuple[PastMaster, ...] = ()
    notes: tuple[str, ...] = ()
    """What is wrong and what was left out because of it, for people."""


def segment_path(directory: Path, epoch: int) -> Path:
    """Return where the segment of `epoch` lies."""
    return directory / f"journal-{epoch}.log"


def read_segment(path: Path) -> Segment:
    """Return what the segment at `path` holds, damaged or not.

    Raises:
        JournalError: it cannot be read, is no segment, or was written by a newer release.
    """
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise JournalError(f"{path} is no journal segment; segments are named journal-<epoch>.log")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JournalError(f"journal segment {path} cannot be read: {error.strerror}") from error
    return _decode(path, int(match[1]), framing.scan(data), len(data))


def read_segments(directory: Path) -> tuple[Segment, ...]:
    """Return every segment of `directory`, oldest epoch first; none where it does not exist.

    Raises:
        JournalError: see `read_segment`.
    """
    paths = [segment_path(directory, epoch) for epoch in epochs(directory)]
    return tuple(map(read_segment, paths))


def epochs(directory: Path) -> tuple[int, ...]:
    """Return the epochs of which `directory` has a segment, oldest first.

    Raises:
        JournalError: the directory exists and cannot be read.
    """
    try:
        matches = [_NAME.fullmatch(path.name) for path in directory.iterdir()]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise JournalError(f"journal {directory} cannot be read: {error.strerror}") from error
    return tuple(sorted(int(match[1]) for match in matches if match))


def join(segments: Sequence[Segment], job_uid: str) -> History:
    """Return the records of `segments` (oldest epoch first) as one sequence without gaps.

    Raises:
        JournalError: a segment belongs to another job.
    """
    records: list[JournalRecord] = []
    masters: list[PastMaster] = []
    notes: list[str] = []
    for segment in segments:
        opened = segment.opened
        if opened is None:
            notes.append(f"{segment.path.name} holds no intact record and is left out")
            continue
        if opened.job_uid != job_uid:
            raise JournalError(
                f"{segment.path} is of job {opened.job_uid!r}, this master is of {job_uid!r}; "
                "give each job its own journal_dir"
            )
        notes.extend(_superseded(records, segment))
        gap = _gap(records, segment)
        if gap:
            notes.append(gap)
            break
        records.extend(segment.records)
        masters.append(PastMaster(opened.epoch, opened.incarnation, newest_event(records)))
        if segment.broken:
            notes.append(segment.broken)
    return History(tuple(records), tuple(masters), tuple(notes))


def newest_event(records: Sequence[JournalRecord]) -> int:
    """Return the sequence of the newest event in `records`; 0: none."""
    for record in reversed(records):
        if isinstance(record.fact, EventRecorded) and record.fact.event is not None:
            return record.fact.event.sequence
    return 0


def _superseded(records: list[JournalRecord], segment: Segment) -> list[str]:
    # What an older master wrote after its successor had read the journal is in nobody's state.
    first = segment.records[0].sequence
    count = sum(record.sequence >= first for record in records)
    if not count:
        return []
    del records[-count:]
    note = (
        f"{count} records from {first} on were written by an older master after "
        f"{segment.path.name} had begun, and are left out"
    )
    return [note]


def _gap(records: list[JournalRecord], segment: Segment) -> str:
    expected = records[-1].sequence + 1 if records else segment.records[0].sequence
    first = segment.records[0].sequence
    if first == expected:
        return ""
    return (
        f"records {expected} to {first - 1} are lost; {segment.path.name} and what follows it "
        "build on them and are left out"
    )


def _decode(path: Path, epoch: int, scan: framing.Scan, size: int) -> Segment:
    records: list[JournalRecord] = []
    position, broken = 0, _describe(path, scan, size)
    corrupt = scan.damage is Damage.CORRUPT
    for data in scan.records:
        try:
            record = codec.decode(JournalRecord, data)
        except codec.WireError as error:
            left = len(scan.records) - len(records)
            broken = f"{path.name}: record at byte {position} is unknown ({error}); {left} left out"
            corrupt = True
            break
        if records and record.sequence != records[-1].sequence + 1:
            broken = (
                f"{path.name}: record {record.sequence} at byte {position} follows "
                f"{records[-1].sequence}; it and what follows it is left out"
            )
            corrupt = True
            break
        records.append(record)
        position += len(framing.frame(data))
    segment = Segment(path, epoch, tuple(records), position, broken, corrupt)
    _check_header(segment)
    return segment


def _check_header(segment: Segment) -> None:
    opened = segment.opened
    if segment.records and opened is None:
        raise JournalError(f"{segment.path} does not begin with its header; move it away")
    if opened is None:
        return
    if opened.format > FORMAT:
        raise JournalError(
            f"{segment.path} has format {opened.format}, written by holdfast {opened.version}; "
            f"this release reads up to {FORMAT}: use that release or a newer one"
        )
    if opened.epoch != segment.epoch:
        raise JournalError(
            f"{segment.path} is of epoch {opened.epoch}, its name says {segment.epoch}; "
            "give it its name back"
        )


def _describe(path: Path, scan: framing.Scan, size: int) -> str:
    if scan.damage is None:
        return ""
    rest = size - scan.intact_bytes
    where = f"{path.name}: intact up to byte {scan.intact_bytes} ({len(scan.records)} records)"
    if scan.damage is Damage.TORN:
        return f"{where}; the last {rest} bytes are an unfinished record and are cut off"
    return f"{where}; damaged there, {scan.lost_records} intact records behind it are left out"
