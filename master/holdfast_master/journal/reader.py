"""Reads the records of earlier masters: the newest base and the facts after it, in sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from holdfast_master.journal.segments import (
    FileName,
    JournalError,
    Segment,
    SegmentKind,
    listing,
    read_head,
    read_segment,
    start_of,
)
from holdfast_wire.messages import EventRecorded, JobFolded, JournalRecord, PastMaster

_TRIES = 5
"""A master that writes removes old files while they are read; then everything is read anew."""


@dataclasses.dataclass(frozen=True, slots=True)
class History:
    """All that can be used of a journal, as one sequence of records."""

    records: tuple[JournalRecord, ...] = ()
    """A base's records first, where there is one."""
    masters: tuple[PastMaster, ...] = ()
    notes: tuple[str, ...] = ()
    """Faults, and the records left out because of them, for people."""
    lost: bool = False
    """Facts that had been written cannot be used."""
    base: int = 0
    """Sequence up to which a base stands for the facts; 0: there is none."""
    tail_bytes: int = 0
    """Bytes of the files that hold facts after the base."""


def read_history(
    directory: Path, job_uid: str, *, own_epoch: int = 0, upto: int | None = None
) -> History:
    """The history that `directory` holds; an empty one where it does not exist.

    Args:
        directory: of the journal.
        job_uid: whose journal it must be.
        own_epoch: the reader's own; that it holds nothing yet is no news.
        upto: only what is needed for the state after this record; None: everything.

    Raises:
        JournalError: the directory cannot be read, or holds a newer release's or another job's.
    """
    for _ in range(_TRIES):
        try:
            return _read_once(directory, job_uid, own_epoch, upto)
        except FileNotFoundError:
            continue
    raise JournalError(f"journal {directory} changes all the time; is it written by two masters?")


def _read_once(directory: Path, job_uid: str, own_epoch: int, upto: int | None) -> History:
    notes: list[str] = []
    names = listing(directory)
    starts = starts_of(names)
    bases = [name for name in names if name.kind is SegmentKind.BASE]
    base: Segment | None = None
    for name in sorted(bases, key=lambda item: (item.number, item.epoch), reverse=True):
        if upto is not None and name.number > upto:
            continue
        base, problem = _usable(name, starts)
        if base is not None:
            break
        notes.append(problem)
    after = base.records[0].sequence if base is not None else 0
    segments = [read_segment(name.path) for name in needed(starts, after)]
    segments = [item for item in segments if item.size or item.broken or item.epoch != own_epoch]
    history = join(segments, job_uid, base)
    return dataclasses.replace(history, notes=(*notes, *history.notes))


def starts_of(names: Sequence[FileName]) -> dict[FileName, int | None]:
    """Return for each file of facts the sequence before its first; None: its head is damaged.

    Raises:
        FileNotFoundError: a file has been removed meanwhile.
        JournalError: a file is of a newer release.
    """
    facts = [name for name in names if name.kind is SegmentKind.FACTS]
    heads = {name: read_head(name.path) for name in facts}
    return {name: None if head is None else start_of(head) for name, head in heads.items()}


def needed(starts: dict[FileName, int | None], after: int) -> tuple[FileName, ...]:
    """The newest file that begins at or before record `after`, and all files behind it.

    No other file can hold a record behind `after`.
    """
    names = list(starts)
    keep = 0
    for at, name in enumerate(names):
        start = starts[name]
        if start is not None and start <= after:
            keep = at
    return tuple(names[keep:])


def superseded(name: FileName, starts: dict[FileName, int | None]) -> bool:
    """Whether a newer master began without the records that the base `name` stands for."""
    return any(
        other.epoch > name.epoch and start is not None and start < name.number
        for other, start in starts.items()
    )


def _usable(name: FileName, starts: dict[FileName, int | None]) -> tuple[Segment | None, str]:
    if superseded(name, starts):
        return None, (
            f"{name.path.name} was written by a master that had a successor, and is left out"
        )
    segment = read_segment(name.path)
    newest = segment.records[-1].fact if segment.records else None
    if not (isinstance(newest, JobFolded) and newest.last):
        problem = segment.broken or f"{name.path.name} is not complete"
        return None, f"{problem}; an older base or the facts themselves are used instead"
    return segment, ""


def join(segments: Sequence[Segment], job_uid: str, base: Segment | None = None) -> History:
    """The base and the facts of `segments` (oldest first) as one sequence without gaps.

    Raises:
        JournalError: a file belongs to another job.
    """
    joined = _Joined(job_uid)
    if base is not None:
        joined.begin(base)
    for segment in segments:
        if not joined.add(segment):
            break
    return joined.history(sum(segment.size for segment in segments))


class _Joined:
    """The part of the history that has been joined so far."""

    def __init__(self, job_uid: str) -> None:
        self._job_uid = job_uid
        self._folded: list[JournalRecord] = []
        self._records: list[JournalRecord] = []
        self._masters: dict[tuple[int, str], int] = {}
        self._notes: list[str] = []
        self._base = 0
        self._lost = False

    def begin(self, base: Segment) -> None:
        """Start with the records of a base."""
        self._check_job(base)
        self._base = base.start
        self._folded = list(base.facts)
        for record in self._folded:
            if isinstance(record.fact, JobFolded):
                for past in record.fact.masters:
                    self._masters[past.epoch, past.incarnation] = past.newest_event

    def add(self, segment: Segment) -> bool:
        """Take one more segment; return False when the segments behind it cannot be used."""
        opened = segment.opened
        if opened is None:
            why = f": {segment.broken}" if segment.broken else ""
            self._notes.append(f"{segment.path.name} holds no intact record and is left out{why}")
            self._lost |= segment.corrupt
            return True
        self._check_job(segment)
        if self._second_owner(segment):
            return True
        if not opened.part:
            self._supersede(segment)
        facts = [record for record in segment.facts if record.sequence > self._base]
        gap = self._gap(segment, facts)
        if gap:
            self._notes.append(gap)
            self._lost = True
            return False
        self._records.extend(facts)
        owner = (opened.epoch, opened.incarnation)
        if facts or owner not in self._masters:
            before = max(self._masters.values(), default=0)
            newest = newest_event(self._records) or before
            self._masters[owner] = newest
        if segment.broken:
            self._notes.append(segment.broken)
            self._lost |= segment.corrupt
        return True

    def history(self, tail_bytes: int) -> History:
        """The history that all segments together make."""
        self._cut_half_decision()
        masters = tuple(
            PastMaster(epoch=epoch, incarnation=incarnation, newest_event=newest)
            for (epoch, incarnation), newest in self._masters.items()
        )
        records = (*self._folded, *self._records)
        notes = tuple(self._notes)
        return History(records, masters, notes, self._lost, self._base, tail_bytes)

    def _cut_half_decision(self) -> None:
        """Leave the newest decision out where not all of the decision's records are there."""
        count = 0
        while count < len(self._records) and self._records[-1 - count].more:
            count += 1
        if not count:
            return
        first = self._records[-count].sequence
        del self._records[-count:]
        self._notes.append(
            f"records {first} to {first + count - 1} are the beginning of a decision whose end was "
            "not written, and are left out"
        )
        # Their events' numbers are given out again: nobody may go on behind them.
        owner = next(reversed(self._masters))
        before = max((n for who, n in self._masters.items() if who != owner), default=0)
        self._masters[owner] = newest_event(self._records) or before

    def _check_job(self, segment: Segment) -> None:
        opened = segment.opened
        if opened is not None and opened.job_uid != self._job_uid:
            raise JournalError(
                f"{segment.path} is of job {opened.job_uid!r}, this master is of "
                f"{self._job_uid!r}; give each job its own journal_dir"
            )

    def _second_owner(self, segment: Segment) -> bool:
        opened = segment.opened
        others = [who for epoch, who in self._masters if opened and epoch == opened.epoch]
        if opened is None or not others or opened.incarnation in others:
            return False
        self._notes.append(
            f"{segment.path.name} is of epoch {opened.epoch} by the master {opened.incarnation}, "
            f"but that epoch is {others[0]}'s; it is left out"
        )
        self._lost = True
        return True

    def _supersede(self, segment: Segment) -> None:
        # What an older master wrote after its successor had read the journal is in nobody's state.
        first = segment.start + 1
        count = sum(record.sequence >= first for record in self._records)
        if not count:
            return
        del self._records[-count:]
        self._notes.append(
            f"{count} records from {first} on were written by an older master after "
            f"{segment.path.name} had begun, and are left out"
        )

    def _gap(self, segment: Segment, facts: Sequence[JournalRecord]) -> str:
        expected = self._records[-1].sequence + 1 if self._records else self._base + 1
        first = facts[0].sequence if facts else max(segment.start, self._base) + 1
        if first == expected:
            return ""
        if first < expected:
            return (
                f"{segment.path.name} begins with record {first} again; "
                "it and what follows it is left out"
            )
        return (
            f"records {expected} to {first - 1} are lost; {segment.path.name} and what follows it "
            "build on them and are left out"
        )


def newest_event(records: Sequence[JournalRecord]) -> int:
    """The sequence of the newest event in `records`; 0: none."""
    for record in reversed(records):
        if isinstance(record.fact, EventRecorded) and record.fact.event is not None:
            return record.fact.event.sequence
    return 0
