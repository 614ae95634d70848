"""`replay`: step through the inputs and decisions of a master, and decide them again."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast_master.journal.reader import read_history
from holdfast_master.journal.segments import JournalError
from holdfast_master.replay.codec import RecordedInputError
from holdfast_master.replay.files import is_unbegun, read_opened, read_recording, recording_paths
from holdfast_master.replay.inspect import fact_text
from holdfast_master.replay.inspect.show import everything, job_uid_of, of_incident
from holdfast_master.replay.replayer import ReplayedInput, ReplayError, redecide, split
from holdfast_wire.messages import JournalRecord, RecordingOpened

SAME, UNKNOWN, DIFFERENT = 0, 2, 8
"""Exit codes: today's code decides as it was decided then, that cannot be known, differently."""
_AROUND_SECONDS = 15.0
"""Shown before an incident's first fact and after its last one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """The facts to look at, from `first` to `last` by sequence; last 0: to the end."""

    first: int = 0
    last: int = 0

    def holds(self, step: ReplayedInput, newest: int) -> bool:
        """Whether a step lies in the span; `newest` is the newest fact after the step."""
        begins = step.records[0].sequence if step.records else newest
        return newest >= self.first and (not self.last or begins <= self.last)


class Player:
    """Plays the recordings of one directory."""

    def __init__(self, directory: Path, span: Span, print_line: Callable[[str], None]) -> None:
        self._directory = directory
        self._span = span
        self._print = print_line
        self._quiet = 0
        self.steps = 0
        self.facts = 0
        self.compared = 0
        self.difference = False
        self.failed = False

    def play(self, pause: Callable[[], None]) -> int:
        """Play the recordings that the span covers; return the exit code.

        Raises:
            JournalError: the journal cannot be read.
        """
        newest = 0
        for path, opened in self._chosen():
            self._print_unrecorded(newest, opened.sequence)
            newest = self._play_one(path, opened, pause)
            self._flush()
            if self.difference:
                return DIFFERENT
        self._print_unrecorded(newest, None)
        if self.steps:
            self._print(f"{self.steps} inputs, {self.facts} facts decided again: {self._verdict()}")
        else:
            self._print("no inputs of this are recorded (or kept): nothing was decided again")
        return UNKNOWN if self.failed else SAME

    def _verdict(self) -> str:
        unknown = self.facts - self.compared
        if not unknown:
            return "all as they were"
        return (
            f"{self.compared} as they were, and {unknown} that the journal does not hold: `holdfast"
            " journal verify` says why; where it finds nothing, the master was killed before it "
            "wrote them"
        )

    def _chosen(self) -> list[tuple[Path, RecordingOpened]]:
        heads = [(path, self._opened(path)) for path in recording_paths(self._directory)]
        known = [(path, opened) for path, opened in heads if opened is not None]
        first, last = max(self._span.first, 1), self._span.last
        before = [at for at, (_, opened) in enumerate(known) if opened.sequence < first]
        later = known[before[-1] if before else 0 :]
        return [item for item in later if not last or item[1].sequence < last]

    def _opened(self, path: Path) -> RecordingOpened | None:
        if is_unbegun(path):
            self._print(f"   {path.name} is empty: its master was ended before it wrote any input")
            return None
        try:
            opened = read_opened(path)
        except JournalError as error:
            opened, problem = None, str(error)
        else:
            problem = f"{path.name} has no intact head"
        if opened is None:
            self.failed = True
            self._print(f"   not decided again: {problem}")
        return opened

    def _play_one(self, path: Path, opened: RecordingOpened, pause: Callable[[], None]) -> int:
        """Play one recording; return the newest record that was decided again."""
        recording = read_recording(path)
        newest = opened.sequence
        if recording is None or recording.newest < self._span.first:
            return newest
        history = read_history(self._directory, opened.job_uid, upto=newest)
        before, facts = split(history.records, newest, opened.epoch)
        self._print(f"== {path.name}: epoch {opened.epoch}, after record {newest}")
        try:
            for step in redecide(opened, recording.inputs(), before, facts):
                newest = step.records[-1].sequence if step.records else newest
                self._count(step)
                if step.difference or self._span.holds(step, newest):
                    self._show(step, pause)
                if self._span.last and newest > self._span.last and not step.difference:
                    break
        except (ReplayError, RecordedInputError) as error:
            self._flush()
            self.failed = True
            self._print(f"   not decided again: {error}")
        if recording.broken:
            self._print(f"   {recording.broken}; the inputs behind that are left out")
        return newest

    def _count(self, step: ReplayedInput) -> None:
        self.steps += 1
        self.facts += len(step.records)
        self.compared += len(step.recorded)

    def _show(self, step: ReplayedInput, pause: Callable[[], None]) -> None:
        if not step.records and not step.difference:
            self._quiet += 1
            return
        self._flush()
        self._print(f"{fact_text.clock(step.moment.unix)}  > {fact_text.input_line(step.event)}")
        for record in step.records:
            kind = fact_text.kind_of(record)
            self._print(f"    {record.sequence:>7} {kind:<16} {fact_text.words(record)}")
        for line in fact_text.order_lines(step.orders):
            self._print(f"         -> {line}")
        if step.difference:
            self.difference = True
            self._print_difference(step)
        pause()

    def _print_difference(self, step: ReplayedInput) -> None:
        self._print(f"FIRST DIFFERENCE at input {step.number}: {step.difference}")
        sides = (("then", step.recorded, step.records), ("today", step.records, step.recorded))
        for when, mine, others in sides:
            known = set(map(repr, others))
            for record in mine:
                if repr(record) not in known:
                    self._print(f"  {when:<6}{fact_text.fact_line(record)}")

    def _flush(self) -> None:
        if self._quiet:
            self._print(f"    ... {self._quiet} inputs that led to no fact")
        self._quiet = 0

    def _print_unrecorded(self, after: int, last: int | None) -> None:
        """Show the facts of the span behind record `after`, up to `last` (None: all)."""
        if last is not None and last <= after:
            return
        first = max(after + 1, self._span.first)
        limits = [limit for limit in (self._span.last, last) if limit]
        facts = [
            record
            for record in self._everything
            if record.sequence >= first and all(record.sequence <= limit for limit in limits)
        ]
        for record in facts:
            self._print(fact_text.fact_line(record))
        if facts:
            between = f"records {facts[0].sequence} to {facts[-1].sequence}"
            self._print(f"   no inputs of {between} are recorded (any more): not decided again")

    @functools.cached_property
    def _everything(self) -> tuple[JournalRecord, ...]:
        return everything(self._directory).facts


def span_of(directory: Path, incident: str, first: int) -> Span:
    """The span of facts that was asked for.

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
