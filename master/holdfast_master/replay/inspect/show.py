"""`journal show`: the facts in their order, those that were asked for."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast_master.journal.reader import read_history
from holdfast_master.journal.segments import JournalError, listing, read_head, read_segments
from holdfast_master.replay.inspect import fact_text
from holdfast_wire.messages import JobFolded, JournalRecord, SegmentOpened


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The facts that are wanted; a field that is left out asks for nothing."""

    kinds: tuple[str, ...] = ()
    round: int | None = None
    incident: str = ""
    first: int = 0
    """Sequence."""
    last: int = 0
    """Sequence; 0: to the end."""

    def takes(self, record: JournalRecord) -> bool:
        """Whether the fact is wanted."""
        return (
            (not self.kinds or fact_text.kind_of(record) in self.kinds)
            and (self.round is None or fact_text.round_of(record) == self.round)
            and (not self.incident or fact_text.incident_of(record) == self.incident)
            and record.sequence >= self.first
            and (not self.last or record.sequence <= self.last)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class JournalContent:
    """The readable part of a journal."""

    facts: tuple[JournalRecord, ...]
    """Those that a successor would take for true, kept ones before the base first."""
    notes: tuple[str, ...]
    """Its faults, for people."""


def show(found: JournalContent, wanted: Filter, *, as_json: bool) -> Iterator[str]:
    """Yield the wanted facts, a line each, with the facts before a base that are still kept.

    Raises:
        JournalError: there is no such incident.
    """
    if wanted.incident:
        of_incident(found.facts, wanted.incident)
    for record in found.facts:
        if wanted.takes(record):
            yield json.dumps(fact_text.plain(record)) if as_json else fact_text.fact_line(record)


def of_incident(facts: Sequence[JournalRecord], incident: str) -> list[JournalRecord]:
    """The facts that belong to the incident.

    Raises:
        JournalError: there is no such incident; names those that there are.
    """
    mine = [record for record in facts if fact_text.incident_of(record) == incident]
    if not mine:
        known = ", ".join(sorted({fact_text.incident_of(record) for record in facts} - {""}))
        raise JournalError(f"the journal has no incident {incident!r}; known: {known or 'none'}")
    return mine


def everything(directory: Path) -> JournalContent:
    """Return everything that can be read of the journal in `directory`.

    Raises:
        JournalError: there is no journal, or it cannot be read.
    """
    job_uid = job_uid_of(directory)
    history = read_history(directory, job_uid)
    segments = read_segments(directory)
    kept = {
        record.sequence: record
        for segment in segments
        if segment.opened is not None and segment.opened.job_uid == job_uid
        for record in segment.facts
        if record.sequence <= history.base
    }
    after = [record for record in history.records if not isinstance(record.fact, JobFolded)]
    broken = [segment.broken for segment in segments if segment.broken]
    notes = dict.fromkeys([*history.notes, *broken])
    return JournalContent((*(kept[sequence] for sequence in sorted(kept)), *after), tuple(notes))


def job_uid_of(directory: Path) -> str:
    """The uid of the job whose journal lies in `directory`.

    Raises:
        JournalError: no file there has an intact head, or one is of a newer release.
    """
    names = listing(directory)
    for name in reversed(names):
        head = read_head(name.path)
        if head is not None and isinstance(head.fact, SegmentOpened):
            return head.fact.job_uid
    if not names:
        raise JournalError(f"{directory} holds no journal; name a job, or its journal's directory")
    raise JournalError(f"{directory}: no file of the journal has an intact head; nothing is left")
