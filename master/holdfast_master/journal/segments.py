"""One file of a journal: its name, its head, and the intact records that it holds."""

from __future__ import annotations

import dataclasses
import enum
import re
from pathlib import Path

from holdfast_master.instructions import JOURNAL_FORMAT
from holdfast_master.journal import filesystem, framing
from holdfast_master.journal.framing import Damage
from holdfast_wire import codec
from holdfast_wire.messages import JournalRecord, SegmentOpened

_NAME = re.compile(r"journal-([1-9]\d*|0)(?:-([1-9]\d*))?\.log|base-([1-9]\d*)-([1-9]\d*)\.log")


class JournalError(Exception):
    """A journal that cannot be used at all; the text names the file, the fault and the remedy."""


class EpochRefusedError(JournalError):
    """Another master has this epoch or a newer one: this process must not act."""


class SegmentKind(enum.Enum):
    """The kind of a file of the journal."""

    FACTS = "facts"
    BASE = "base"


@dataclasses.dataclass(frozen=True, slots=True)
class FileName:
    """A file of the journal, as its name tells."""

    path: Path
    kind: SegmentKind
    epoch: int
    """Of the master that wrote it."""
    number: int
    """Facts: the part of the epoch, from 0. Base: the sequence of the newest record in it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """The content of one file."""

    path: Path
    epoch: int
    records: tuple[JournalRecord, ...]
    """Intact ones; the first is a SegmentOpened."""
    intact_bytes: int
    broken: str = ""
    """The fault after the intact records, for people; empty: none."""
    corrupt: bool = False
    """True: facts are missing that had been written whole."""
    size: int = 0
    """Bytes of the file."""

    @property
    def opened(self) -> SegmentOpened | None:
        """The file's head; None where not even the head is intact."""
        return _opened(self.records[0]) if self.records else None

    @property
    def start(self) -> int:
        """The sequence of the last record before the facts; 0: the head is not intact."""
        return start_of(self.records[0]) if self.records else 0

    @property
    def facts(self) -> tuple[JournalRecord, ...]:
        """The records without a head that is none of the facts."""
        opened = self.opened
        heads = opened is not None and (opened.part > 0 or opened.base)
        return self.records[1:] if heads else self.records


def segment_path(directory: Path, epoch: int, part: int = 0) -> Path:
    """The path of a part of the facts of `epoch`."""
    return directory / (f"journal-{epoch}-{part}.log" if part else f"journal-{epoch}.log")


def base_path(directory: Path, epoch: int, sequence: int) -> Path:
    """The path of the base up to `sequence` that the master of `epoch` wrote."""
    return directory / f"base-{sequence}-{epoch}.log"


def parse_name(path: Path) -> FileName | None:
    """The parts of the name of `path`; None: the path is no file of a journal."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    epoch, part, sequence, writer = match.groups()
    if epoch is None:
        return FileName(path, SegmentKind.BASE, int(writer), int(sequence))
    return FileName(path, SegmentKind.FACTS, int(epoch), int(part or 0))


def listing(directory: Path) -> tuple[FileName, ...]:
    """The files of the journal in `directory`: facts by epoch and part, then bases.

    Raises:
        JournalError: the directory exists and cannot be read.
    """
    try:
        names = [parse_name(path) for path in directory.iterdir()]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise JournalError(f"journal {directory} cannot be read: {error.strerror}") from error
    found = [name for name in names if name is not None]
    return tuple(
        sorted(found, key=lambda name: (name.kind is SegmentKind.BASE, name.epoch, name.number))
    )


def epochs(directory: Path) -> tuple[int, ...]:
    """The epochs of which `directory` has a file, oldest first.

    Raises:
        JournalError: see `listing`.
    """
    return tuple(sorted({name.epoch for name in listing(directory)}))


def start_of(head: JournalRecord) -> int:
    """The sequence of the last record before the facts of the file that `head` begins."""
    opened = _opened(head)
    if opened is not None and (opened.part or opened.base):
        return head.sequence
    return head.sequence - 1


def read_head(path: Path) -> JournalRecord | None:
    """A file's first record without reading the others; None where it is not intact.

    Raises:
        FileNotFoundError: it has been removed.
        JournalError: the file is of a newer release, or has another file's name.
    """
    try:
        with filesystem.open_plain(path) as file:
            first = framing.read_first(file)
    except FileNotFoundError:
        raise
    except OSError:
        return None
    if first is None:
        return None
    try:
        record = codec.decode(JournalRecord, first)
    except codec.WireError:
        return None
    if _opened(record) is None:
        return None
    _check_head(path, record)
    return record


def read_segment(path: Path) -> Segment:
    """The content of the file at `path`, damaged or not.

    Raises:
        FileNotFoundError: it has been removed.
        JournalError: it is no file of a journal, or was written by a newer release.
    """
    name = parse_name(path)
    if name is None:
        raise JournalError(f"{path} is no journal segment; segments are named journal-<epoch>.log")
    try:
        with filesystem.open_plain(path) as file:
            data = file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        # A bad sector, a directory of this name: the job must not stand still for it.
        broken = f"{path.name} cannot be read: {error.strerror}"
        return Segment(path, name.epoch, (), 0, broken, corrupt=True)
    return _decode(name, framing.scan(data), len(data))


def read_segments(directory: Path) -> tuple[Segment, ...]:
    """Every file of facts in `directory`, oldest first; none where it does not exist.

    Raises:
        JournalError: see `listing` and `read_segment`.
    """
    names = [name for name in listing(directory) if name.kind is SegmentKind.FACTS]
    return tuple(read_segment(name.path) for name in names)


def _opened(record: JournalRecord) -> SegmentOpened | None:
    return record.fact if isinstance(record.fact, SegmentOpened) else None


def _decode(name: FileName, scan: framing.Scan, size: int) -> Segment:
    records: list[JournalRecord] = []
    position, broken = 0, _describe(name.path, scan, size)
    corrupt = scan.damage is Damage.CORRUPT
    for data in scan.records:
        problem, record = _decode_next(name, records, data)
        if record is None:
            left = len(scan.records) - len(records)
            broken = f"{name.path.name}: record at byte {position} {problem}; {left} left out"
            corrupt = True
            break
        records.append(record)
        position += framing.HEAD_BYTES + len(data)
    if records and _opened(records[0]) is None:
        # Whose records these are, nobody can say any more.
        broken = f"{name.path.name} does not begin with its header"
        return Segment(name.path, name.epoch, (), 0, broken, corrupt=True, size=size)
    if records:
        _check_head(name.path, records[0])
    elif name.kind is SegmentKind.BASE or name.number:
        # Such a file gets its name only once its head is on disk: no kill leaves one without.
        broken = broken or f"{name.path.name} has lost its head and all that followed it"
        corrupt = True
    return Segment(name.path, name.epoch, tuple(records), position, broken, corrupt, size)


def _decode_next(
    name: FileName, before: list[JournalRecord], data: bytes
) -> tuple[str, JournalRecord | None]:
    try:
        record = codec.decode(JournalRecord, data)
    except codec.WireError as error:
        return f"is unknown ({error})", None
    if not before:
        return "", record
    step = 0 if name.kind is SegmentKind.BASE else 1
    if record.sequence != before[-1].sequence + step:
        return f"is record {record.sequence} and follows {before[-1].sequence}", None
    return "", record


def _check_head(path: Path, head: JournalRecord) -> None:
    opened, name = _opened(head), parse_name(path)
    if opened is None:
        return
    if opened.format != JOURNAL_FORMAT:
        raise JournalError(
            f"{path} has format {opened.format}, written by holdfast {opened.version}; "
            f"this release reads format {JOURNAL_FORMAT}: use that release"
        )
    if name is None:
        return
    if opened.epoch != name.epoch:
        raise JournalError(
            f"{path} is of epoch {opened.epoch}, its name says {name.epoch}; give it its name back"
        )
    number = head.sequence if opened.base else opened.part
    if (number, opened.base) != (name.number, name.kind is SegmentKind.BASE):
        raise JournalError(
            f"{path} is {'a base' if opened.base else 'a part'} with number {number}, "
            "which its name does not say; give it its name back"
        )


def _describe(path: Path, scan: framing.Scan, size: int) -> str:
    if scan.damage is None:
        return ""
    rest = size - scan.intact_bytes
    where = f"{path.name}: intact up to byte {scan.intact_bytes} ({len(scan.records)} records)"
    if scan.damage is Damage.TORN:
        return f"{where}; the last {rest} bytes are an unfinished record and are cut off"
    return f"{where}; damaged there, {scan.lost_records} intact records behind it are left out"
