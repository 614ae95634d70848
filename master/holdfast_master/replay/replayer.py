"""Deciding a master's inputs again with the code of today, and comparing.

A core is deterministic: the same code gives the same facts. So a difference is the work of changed
code, of a changed setting, or a defect.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdfast_master.core import Core
from holdfast_master.inputs import Input, Moment
from holdfast_master.instructions import Instruction, Record
from holdfast_master.replay.codec import from_message
from holdfast_master.replay.typed_json import TypedJsonError, read_dataclass
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire import messages as wire


class ReplayError(Exception):
    """It cannot be decided again: says what is missing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedInput:
    """One input, and what today's code made of it."""

    number: int
    """0: the master's own beginning."""
    moment: Moment
    event: Input | None
    """None: the master's own beginning."""
    records: tuple[wire.JournalRecord, ...]
    """The decisions of today's code."""
    orders: tuple[Instruction, ...]
    """Instructions of today's code because of it."""
    recorded: tuple[wire.JournalRecord, ...]
    """The decisions of then, as far as the journal has them."""
    difference: str = ""
    """How the two differ, for people; empty: they do not."""


def redecide(
    opened: wire.RecordingOpened,
    inputs: Iterable[wire.InputRecorded],
    before: Sequence[wire.JournalRecord],
    facts: Mapping[int, wire.JournalRecord],
) -> Iterator[ReplayedInput]:
    """Feed what was recorded into a core of today; ends after the first difference.

    Args:
        opened: the recording's head.
        inputs: what followed it.
        before: the journal up to the recording's beginning, in order.
        facts: the journal after it, by sequence; what is missing is not compared.

    Raises:
        ReplayError: the core cannot be set up as it was.
    """
    core = _restore(opened, before)
    moment = Moment(opened.mono, opened.unix_time)
    step = _opening(moment, core.open(moment), facts)
    yield step
    if step.difference:
        return
    newest = core.job.state.sequence
    for number, recorded in enumerate(inputs, start=1):
        moment = Moment(recorded.mono, recorded.unix_time)
        step = _again(core, number, moment, recorded, facts, newest)
        newest = core.job.state.sequence
        yield step
        if step.difference:
            return


def _restore(opened: wire.RecordingOpened, before: Sequence[wire.JournalRecord]) -> Core:
    newest = before[-1].sequence if before else 0
    if newest != opened.sequence:
        raise ReplayError(
            f"the recording begins after record {opened.sequence}, the journal before it can be "
            f"read up to {newest}; `holdfast journal verify` says why"
        )
    identity = CoreIdentity(
        job_name=opened.job_name,
        job_uid=opened.job_uid,
        epoch=opened.epoch,
        incarnation=opened.incarnation,
        version=opened.version,
    )
    try:
        settings = read_dataclass(CoreSettings, json.loads(opened.settings or "{}"))
    except (TypedJsonError, ValueError) as error:
        raise ReplayError(
            f"the recording was made with settings that this release does not know ({error}); "
            f"replay it with holdfast {opened.version}"
        ) from error
    return Core(identity, settings, before)


def _again(
    core: Core,
    number: int,
    moment: Moment,
    recorded: wire.InputRecorded,
    facts: Mapping[int, wire.JournalRecord],
    newest: int,
) -> ReplayedInput:
    event = from_message(recorded)
    then = tuple(
        facts[sequence]
        for sequence in range(newest + 1, recorded.sequence + 1)
        if sequence in facts
    )
    try:
        batch = core.handle(event, moment)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        text = "" if recorded.failed else f"today's code fails: {type(error).__name__}: {error}"
        return _made((number, moment, event), (), then, text)
    records = _facts_of(batch)
    others = len(batch) - len(records)
    text = compare(records, then)
    if not text and core.job.state.sequence != recorded.sequence:
        count = max(0, recorded.sequence - newest)
        text = f"{count} facts followed then, {len(records)} follow today"
    if not text and others != recorded.instructions:
        text = f"{recorded.instructions} instructions followed then, {others} follow today"
    if not text and recorded.failed:
        text = "the code of then failed, today's does not"
    return _made((number, moment, event), batch, then, text)


def _opening(
    moment: Moment, batch: Sequence[Instruction], facts: Mapping[int, wire.JournalRecord]
) -> ReplayedInput:
    records = _facts_of(batch)
    then = tuple(facts[item.sequence] for item in records if item.sequence in facts)
    return _made((0, moment, None), batch, then, compare(records, then))


def _made(
    place: tuple[int, Moment, Input | None],
    batch: Sequence[Instruction],
    recorded: tuple[wire.JournalRecord, ...],
    difference: str,
) -> ReplayedInput:
    number, moment, event = place
    return ReplayedInput(
        number=number,
        moment=moment,
        event=event,
        records=_facts_of(batch),
        orders=tuple(item for item in batch if not isinstance(item, Record)),
        recorded=recorded,
        difference=difference,
    )


def _facts_of(batch: Sequence[Instruction]) -> tuple[wire.JournalRecord, ...]:
    return tuple(item.journal() for item in batch if isinstance(item, Record))


def compare(today: Sequence[wire.JournalRecord], then: Sequence[wire.JournalRecord]) -> str:
    """Return how the facts of today differ from those that the journal has of then."""
    by_sequence = {record.sequence: record for record in today}
    for record in then:
        other = by_sequence.get(record.sequence)
        if other is None:
            return f"record {record.sequence} was written then, and is not today"
        # Where a decision ends, older journals do not say.
        if dataclasses.replace(other, more=record.more) != record:
            return f"record {record.sequence} is another one today"
    return ""


def split(
    records: Sequence[wire.JournalRecord], sequence: int, epoch: int
) -> tuple[list[wire.JournalRecord], dict[int, wire.JournalRecord]]:
    """The part of a history that leads to `sequence`, and the facts of `epoch` after it.

    A successor counts on from the newest record that it finds. A master that was killed may have
    recorded an input whose facts it no longer wrote: the successor's own facts have their numbers.
    """
    before = [record for record in records if record.sequence <= sequence]
    ends = (record.sequence for record in records if _started_epoch(record) > epoch)
    end = min((number for number in ends if number > sequence), default=None)
    after = {
        record.sequence: record
        for record in records
        if record.sequence > sequence
        and (end is None or record.sequence < end)
        and not isinstance(record.fact, wire.JobFolded)
    }
    return before, after


def _started_epoch(record: wire.JournalRecord) -> int:
    """The epoch that a record begins; 0: it begins none."""
    fact = record.fact
    if isinstance(fact, wire.SegmentOpened) and not (fact.part or fact.base):
        return fact.epoch
    return 0
