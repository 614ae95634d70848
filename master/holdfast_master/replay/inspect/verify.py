"""`journal verify`: the content and the damage of each file, and the verdict on the whole."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast_master.journal.reader import History, read_history
from holdfast_master.journal.segments import (
    FileName,
    JournalError,
    Segment,
    SegmentKind,
    listing,
    parse_name,
    read_segment,
)
from holdfast_master.replay.files import is_unbegun, read_recording, recording_paths
from holdfast_master.replay.inspect import fact_text
from holdfast_master.replay.inspect.show import job_uid_of

_SETTLED_SECONDS = 1.0
"""An input is recorded before its records are on disk, which takes less than this."""


class JournalVerdict(enum.IntEnum):
    """The verdict on a journal; the values are exit codes."""

    INTACT = 0
    HURT = 6
    """Something is damaged, and everything that a master needs is there."""
    LOST = 7
    """Facts are lost; a master goes on with what is intact and what the agents say."""


_SENTENCES = {
    JournalVerdict.INTACT: "intact",
    JournalVerdict.HURT: "damaged, nothing is lost: a master reads all it needs",
    JournalVerdict.LOST: (
        "facts are lost: a master goes on with what precedes the damage, and asks agents"
    ),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The finding about one file."""

    file: str
    what: str
    """facts, base, inputs, foreign."""
    epoch: int = 0
    records: int = 0
    first: int = 0
    last: int = 0
    bytes: int = 0
    damage: str = ""
    """Empty: none."""


@dataclasses.dataclass(frozen=True, slots=True)
class JournalReport:
    """The report on a whole directory."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    verdict: JournalVerdict
    newest: int
    """Sequence up to which a master would know."""
    base: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Recorded:
    """The finding about a file of inputs, with the records that the file proves."""

    finding: Finding
    settled: int = 0
    """Sequence of the newest record that must have been in the journal when the file ended."""

    @classmethod
    def read(cls, path: Path) -> _Recorded:
        """Read a file; one that cannot be read says nothing against the journal beside it."""
        if is_unbegun(path):
            return cls(Finding(file=path.name, what="inputs", bytes=0))
        try:
            recording = read_recording(path)
            problem = "no intact head"
        except JournalError as error:
            recording, problem = None, str(error)
        size = path.lstat().st_size
        if recording is None:
            return cls(Finding(file=path.name, what="inputs", bytes=size, damage=problem))
        inputs = list(recording.inputs())
        first = recording.opened.sequence
        settled = [item for item in inputs if item.mono < inputs[-1].mono - _SETTLED_SECONDS]
        finding = Finding(
            file=path.name,
            what="inputs",
            epoch=recording.opened.epoch,
            records=len(inputs),
            first=first,
            last=inputs[-1].sequence if inputs else first,
            bytes=size,
            damage=recording.broken,
        )
        return cls(finding, settled[-1].sequence if settled else first)


def verify(directory: Path) -> JournalReport:
    """Read everything in `directory`.

    Raises:
        JournalError: there is no journal, or it is of a newer release.
    """
    # The recordings first: what they tell of is then on disk in the journal of a master that runs.
    recordings = [_Recorded.read(path) for path in recording_paths(directory)]
    job_uid = job_uid_of(directory)
    history = read_history(directory, job_uid)
    names = listing(directory)
    findings = (
        *(_journal_file(name, job_uid) for name in names),
        *(recorded.finding for recorded in recordings),
        *_foreign(directory),
    )
    newest = history.records[-1].sequence if history.records else 0
    untold = _untold(recordings, max(name.epoch for name in names), newest)
    gaps = _gaps(findings, history)
    notes = (*history.notes, *gaps, *untold)
    damaged = any(finding.damage for finding in findings)
    verdict = JournalVerdict.HURT if damaged or notes else JournalVerdict.INTACT
    if history.lost or untold:
        verdict = JournalVerdict.LOST
    return JournalReport(findings, notes, verdict, newest, history.base)


def _gaps(findings: Sequence[Finding], history: History) -> list[str]:
    """Name the gaps in the facts that a base stands for and that are kept for people."""
    kept = sorted(
        (item.first, item.last) for item in findings if item.what == "facts" and item.records
    )
    gaps, last = [], 0
    for first, its_last in kept:
        if last and last + 1 < first <= history.base + 1:
            gaps.append(f"records {last + 1} to {first - 1} are missing before the base")
        last = max(last, its_last)
    if last < history.base and kept:
        gaps.append(f"records {last + 1} to {history.base} are missing before the base")
    return gaps


def _untold(recordings: Sequence[_Recorded], epoch: int, newest: int) -> list[str]:
    """Name the records that recordings prove but the journal lacks: the journal's end is gone."""
    return [
        f"{item.finding.file} tells of record {item.settled}: records {newest + 1} to "
        f"{item.settled} were in the journal, and are not any more"
        for item in recordings
        if item.finding.epoch >= epoch and item.settled > newest
    ]


def _journal_file(name: FileName, job_uid: str) -> Finding:
    segment: Segment = read_segment(name.path)
    facts = segment.facts
    opened = segment.opened
    damage = segment.broken or ("" if segment.records else "no intact record")
    if opened is not None and opened.job_uid != job_uid:
        damage = f"is of job {opened.job_uid!r}, the newest file of {job_uid!r}: take it away"
        facts = ()
    return Finding(
        file=name.path.name,
        what="base" if name.kind is SegmentKind.BASE else "facts",
        epoch=name.epoch,
        records=len(facts),
        first=facts[0].sequence if facts else 0,
        last=facts[-1].sequence if facts else 0,
        bytes=segment.size,
        damage=damage,
    )


def _foreign(directory: Path) -> list[Finding]:
    known = {path.name for path in recording_paths(directory)}
    return [
        Finding(file=path.name, what="foreign")
        for path in sorted(directory.iterdir())
        if parse_name(path) is None and path.name not in known
    ]


def lines(report: JournalReport, *, as_json: bool) -> Iterator[str]:
    """Yield the report's lines, for people or as one JSON object."""
    if as_json:
        document = {
            "verdict": report.verdict.name,
            "newest": report.newest,
            "base": report.base,
            "notes": list(report.notes),
            "files": [fact_text.plain(finding) for finding in report.findings],
        }
        yield json.dumps(document, indent=2)
        return
    columns = f"{'EPOCH':>6}{'RECORDS':>9}{'FIRST':>10}{'LAST':>10}{'BYTES':>12}"
    yield f"{'FILE':<28}{'HOLDS':<9}{columns}"
    for item in report.findings:
        numbers = f"{item.epoch:>6}{item.records:>9}{item.first:>10}{item.last:>10}"
        yield f"{item.file:<28}{item.what:<9}{numbers}{item.bytes:>12}"
        if item.damage:
            yield f"    {item.damage}"
    yield from (f"note: {note}" for note in report.notes)
    yield f"a master would know everything up to record {report.newest}"
    yield f"verdict: {_SENTENCES[report.verdict]}"
