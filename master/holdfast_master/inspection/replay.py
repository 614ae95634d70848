"""`replay`: step through what a master was told and what it decided, and decide it again.

Belongs here: which recordings are played, and what is printed. Does not belong here: deciding
again (see `redeciding`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast_master.history import read_history
from holdfast_master.inspection import words
from holdfast_master.inspection.places import job_uid_of
from holdfast_master.inspection.show import everything, of_incident
from holdfast_master.recorded_inputs import RecordedInputError
from holdfast_master.recording_files import read_opened, read_recording, recording_paths
from holdfast_master.redeciding import ReplayError, Step, redecide, split
from holdfast_master.segments import JournalError
from holdfast_wire.messages import JournalRecord, RecordingOpened

SAME, UNKNOWN, DIFFERENT = 0, 2, 8
"""Exit codes: today's code decides as it was decided then, that cannot be known, differently."""
_AROUND_SECONDS = 15.0
"""Shown before an incident's first fact and after its last one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Which facts are looked at, by sequence; last 0: to the end."""

    first: int = 0
    last: int = 0

    def holds(self, step: Step, newest: int) -> bool:
        """Whether a step lies in it, `newest` being the newest fact after it."""
        return newest >= self.first and (not self.last or self._begins(step, newest) <= self.last)

    def _begins(self, step: Step, newest: int) -> int:
        return step.records[0].sequence if step.records else newest


class Player:
    """Plays the recordings of one directory."""

    def __init__(self, directory: Path, span: Span, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._span = span
        self._say = say
        self._quiet = 0
        self.steps = 0
        self.facts = 0
        self.compared = 0
        self.difference = False
        self.failed = False

    def play(self, pause: Callable[[], None]) -> int:
        """Play what the span covers; return the exit code.

        Raises:
            JournalError: the journal cannot be read, or nothing was recorded of the span.
        """
        chosen = self._chosen()
        if not chosen:
            self._tell_facts()
            self._say("no inputs of this are recorded (or kept): nothing was decided again")
            return SAME
        for path, opened in chosen:
            self._play_one(path, opened, pause)
            if self.difference:
                return DIFFERENT
        self._flush()
        self._say(f"{self.steps} inputs, {self.facts} facts decided again: {self._verdict()}")
        return UNKNOWN if self.failed else SAME

    def _verdict(self) -> str:
        unknown = self.facts - self.compared
        if not unknown:
            return "all as they were"
        return (
            f"{self.compared} as they were, and {unknown} that the journal does not hold (any "
            "more): `holdfast journal verify` says why"
        )

    def _chosen(self) -> list[tuple[Path, RecordingOpened]]:
        heads = [(path, self._opened(path)) for path in recording_paths(self._directory)]
        known = [(path, opened) for path, opened in heads if opened is not None]
        first = 0
        for at, (_, opened) in enumerate(known):
            if opened.sequence < max(self._span.first, 1):
                first = at
        return [
            item
            for item in known[first:]
            if not self._span.last or item[1].sequence < self._span.last
        ]

    def _opened(self, path: Path) -> RecordingOpened | None:
        try:
            opened = read_opened(path)
        except JournalError as error:
            opened, problem = None, str(error)
        else:
            problem = f"{path.name} has no intact head"
        if opened is None:
            self.failed = True
            self._say(f"   not decided again: {problem}")
        return opened

    def _play_one(self, path: Path, opened: RecordingOpened, pause: Callable[[], None]) -> None:
        recording = read_recording(path)
        history = read_history(self._directory, opened.job_uid, upto=opened.sequence)
        before, facts = split(history.records, opened.sequence)
        self._flush()
        begins = "with the master" if not opened.part else "with the state that was kept"
        self._say(f"== {path.name}: epoch {opened.epoch}, after record {opened.sequence}, {begins}")
        if recording is None:
            return
        newest = opened.sequence
        try:
            for step in redecide(opened, recording.inputs(), before, facts):
                newest = step.records[-1].sequence if step.records else newest
                self.steps += 1
                self.facts += len(step.records)
                self.compared += len(step.recorded)
                if step.difference or self._span.holds(step, newest):
                    self._show(step, pause)
                if self._span.last and newest > self._span.last and not step.difference:
                    break
        except (ReplayError, RecordedInputError) as error:
            self._flush()
            self.failed = True
            self._say(f"   not decided again: {error}")
        if recording.broken:
            self._say(f"   {recording.broken}; the inputs behind that are left out")

    def _show(self, step: Step, pause: Callable[[], None]) -> None:
        if not step.records and not step.difference:
            self._quiet += 1
            return
        self._flush()
        self._say(f"{words.clock(step.moment.unix)}  > {words.input_line(step.event)}")
        for record in step.records:
            self._say(f"    {record.sequence:>7} {words.kind_of(record):<16} {words.says(record)}")
        for line in words.order_lines(step.orders):
            self._say(f"         -> {line}")
        if step.difference:
            self.difference = True
            self._tell_difference(step)
        pause()

    def _tell_difference(self, step: Step) -> None:
        self._say(f"FIRST DIFFERENCE at input {step.number}: {step.difference}")
        sides = (("then", step.recorded, step.records), ("today", step.records, step.recorded))
        for when, mine, others in sides:
            known = set(map(repr, others))
            for record in mine:
                if repr(record) not in known:
                    self._say(f"  {when:<6}{words.fact_line(record)}")

    def _flush(self) -> None:
        if self._quiet:
            self._say(f"    ... {self._quiet} inputs that led to no fact")
        self._quiet = 0

    def _tell_facts(self) -> None:
        for record in everything(self._directory).facts:
            last = self._span.last or record.sequence
            if self._span.first <= record.sequence <= last:
                self._say(words.fact_line(record))


def span_of(directory: Path, incident: str, first: int) -> Span:
    """Return the span of facts that was asked for.

    Raises:
        JournalError: there is no such incident; names those that there are.
    """
    job_uid_of(directory)
    if not incident:
        return Span(first)
    facts = everything(directory).facts
    return _around(facts, of_incident(facts, incident))


def _around(facts: Sequence[JournalRecord], mine: Sequence[JournalRecord]) -> Span:
    begin = mine[0].unix_time - _AROUND_SECONDS
    end = mine[-1].unix_time + _AROUND_SECONDS
    inside = [record.sequence for record in facts if begin <= record.unix_time <= end]
    return Span(min(inside), max(inside))
