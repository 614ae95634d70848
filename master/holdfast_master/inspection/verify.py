"""`journal verify`: what each file holds, what is wrong, and whether anything was lost."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterator
from pathlib import Path

from holdfast_master.history import History, read_history
from holdfast_master.inspection import words
from holdfast_master.inspection.places import job_uid_of
from holdfast_master.recording_files import read_recording, recording_paths
from holdfast_master.segments import FileName, Kind, Segment, listing, parse_name, read_segment


class Verdict(enum.IntEnum):
    """What a journal is worth; the values are exit codes."""

    INTACT = 0
    HURT = 6
    """Something is damaged, and everything that a master needs is there."""
    LOST = 7
    """Facts are lost; a master goes on with what is intact and what the agents say."""


_SENTENCES = {
    Verdict.INTACT: "intact",
    Verdict.HURT: "damaged, nothing is lost: a master reads all it needs",
    Verdict.LOST: "facts are lost: a master goes on with what precedes the damage, and asks agents",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One file."""

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
class Report:
    """A whole directory."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    verdict: Verdict
    newest: int
    """Sequence up to which a master would know."""
    base: int


def verify(directory: Path) -> Report:
    """Read everything in `directory`.

    Raises:
        JournalError: there is no journal, or it is of a newer release.
    """
    history = read_history(directory, job_uid_of(directory))
    findings = (
        *(_journal_file(name) for name in listing(directory)),
        *(_inputs_file(path) for path in recording_paths(directory)),
        *_foreign(directory),
    )
    damaged = any(finding.damage for finding in findings)
    verdict = Verdict.HURT if damaged or history.notes else Verdict.INTACT
    if history.lost:
        verdict = Verdict.LOST
    return Report(findings, history.notes, verdict, _newest(history), history.base)


def _newest(history: History) -> int:
    return history.records[-1].sequence if history.records else 0


def _journal_file(name: FileName) -> Finding:
    segment: Segment = read_segment(name.path)
    facts = segment.facts
    damage = segment.broken or ("" if segment.records else "no intact record")
    return Finding(
        file=name.path.name,
        what="base" if name.kind is Kind.BASE else "facts",
        epoch=name.epoch,
        records=len(facts),
        first=facts[0].sequence if facts else 0,
        last=facts[-1].sequence if facts else 0,
        bytes=segment.size,
        damage=damage,
    )


def _inputs_file(path: Path) -> Finding:
    recording = read_recording(path)
    size = path.stat().st_size
    if recording is None:
        return Finding(file=path.name, what="inputs", bytes=size, damage="no intact head")
    inputs = list(recording.inputs())
    return Finding(
        file=path.name,
        what="inputs",
        epoch=recording.opened.epoch,
        records=len(inputs),
        first=recording.opened.sequence,
        last=inputs[-1].sequence if inputs else recording.opened.sequence,
        bytes=size,
        damage=recording.broken,
    )


def _foreign(directory: Path) -> list[Finding]:
    known = {path.name for path in recording_paths(directory)}
    return [
        Finding(file=path.name, what="foreign")
        for path in sorted(directory.iterdir())
        if parse_name(path) is None and path.name not in known
    ]


def lines(report: Report, *, as_json: bool) -> Iterator[str]:
    """Give the report, for people or as one JSON object."""
    if as_json:
        document = {
            "verdict": report.verdict.name,
            "newest": report.newest,
            "base": report.base,
            "notes": list(report.notes),
            "files": [words.plain(finding) for finding in report.findings],
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
