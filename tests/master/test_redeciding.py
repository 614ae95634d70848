"""What was recorded is decided again: the same code, the same facts; other code, the difference."""

from __future__ import annotations

import dataclasses
import json
import random
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from holdfast_master import redeciding
from holdfast_master.inputs import Input, Moment
from holdfast_master.instructions import Instruction, Record
from holdfast_master.job import papers, rounds
from holdfast_master.recorded_inputs import to_message
from holdfast_master.redeciding import ReplayError, redecide
from holdfast_wire.messages import (
    DrainNodeRequest,
    DumpStacksRequest,
    InputRecorded,
    JournalRecord,
    RecordingOpened,
    RestartWorkerRequest,
    ScaleRequest,
    WorldDecided,
)
from simulated_job import SimulatedJob, job_spec
from simulated_master import MONO_START, UNIX_START
from simulated_process import JOB_UID

HEAD = RecordingOpened(
    format=1,
    epoch=1,
    incarnation="m1",
    job_name="job",
    job_uid=JOB_UID,
    version="0.1.0",
    mono=MONO_START,
    unix_time=UNIX_START,
    settings="{}",
)


@dataclasses.dataclass(eq=False)
class RecordedJob(SimulatedJob):
    """A simulated job whose inputs are recorded, with the core's papers at some moments."""

    told: list[InputRecorded] = dataclasses.field(default_factory=list)
    kept: dict[int, RecordingOpened] = dataclasses.field(default_factory=dict)
    """Heads of recordings that begin before the input of this number."""
    papers_every: int = 0

    def take(self, event: Input) -> list[Instruction]:
        """Record an input as the shell does."""
        now = self.moment()
        if self.papers_every and len(self.told) % self.papers_every == 0:
            self.kept[len(self.told)] = self._head(now)
        batch = super().take(event)
        self.told.append(
            InputRecorded(
                mono=now.mono,
                unix_time=now.unix,
                sequence=self.core.newest_record(),
                instructions=sum(not isinstance(item, Record) for item in batch),
                input=to_message(event),
            )
        )
        return batch

    def _head(self, now: Moment) -> RecordingOpened:
        text = json.dumps(self.core.papers(1000), default=papers.finish)
        return dataclasses.replace(
            HEAD,
            part=1,
            mono=now.mono,
            unix_time=now.unix,
            sequence=self.core.newest_record(),
            papers=zlib.compress(text.encode()),
        )

    def facts(self, sequence: int) -> tuple[list[JournalRecord], Mapping[int, JournalRecord]]:
        """Return the journal up to a record and after it."""
        return redeciding.split(self.records, sequence)


def troubled(seed: int, **more: Any) -> RecordedJob:
    """Return a job that has had faults of every kind, drawn from the seed."""
    job = RecordedJob(job_spec(replicas=4, standbys=1), seed=seed, **more)
    job.add_agents(5)
    chance = random.Random(seed)
    kinds: tuple[Callable[[], object], ...] = (
        lambda: job.agents[chance.randrange(3)].crash(-9),
        lambda: job.evict(chance.randrange(3)),
        lambda: job.change(replicas=chance.randrange(2, 5)),
        lambda: job.ask(DrainNodeRequest(node_rank=chance.randrange(3), reason="test")),
        lambda: job.ask(RestartWorkerRequest(reason="test")),
        lambda: job.ask(DumpStacksRequest()),
        lambda: job.ask(ScaleRequest(replicas=3)),
        lambda: job.stall_master(2.0),
        job.operator_leaves,
        job.operator_returns,
    )
    for _ in range(12):
        job.run(chance.uniform(0.5, 12.0))
        chance.choice(kinds)()
    job.run(30.0)
    return job


@pytest.mark.parametrize("seed", range(8))
def test_the_same_code_decides_the_same(seed: int) -> None:
    """Every fact and the number of instructions of a whole job with faults."""
    job = troubled(seed)
    before, facts = job.facts(0)
    steps = list(redecide(HEAD, job.told, before, facts))
    assert [step.difference for step in steps if step.difference] == [], f"seed {seed}"
    assert len(steps) == len(job.told) + 1, f"seed {seed}"
    again = [record for step in steps for record in step.records]
    assert again == job.records, f"seed {seed}"


@pytest.mark.parametrize("seed", range(4))
def test_a_recording_that_begins_anywhere_is_decided_the_same(seed: int) -> None:
    """From the papers of any moment: the state that the journal does not hold is all in them."""
    job = troubled(seed, papers_every=97)
    assert len(job.kept) > 5
    for first, opened in job.kept.items():
        before, facts = job.facts(opened.sequence)
        if not first:
            continue
        steps = list(redecide(opened, job.told[first:], before, facts))
        different = [(step.number, step.difference) for step in steps if step.difference]
        assert different == [], f"seed {seed}, from input {first}"
        assert len(steps) == len(job.told) - first


def test_changed_code_shows_at_its_first_other_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference names the record; nothing is decided after it."""
    job = troubled(3)
    before, facts = job.facts(0)
    real = WorldDecided

    def other(**fields: Any) -> object:
        return real(**{**fields, "reason": "for another reason"})

    monkeypatch.setattr(rounds, "WorldDecided", other)
    steps = list(redecide(HEAD, job.told, before, facts))
    last = steps[-1]
    first = next(r for r in job.records if type(r.fact).__name__ == "WorldDecided")
    assert last.difference == f"record {first.sequence} is another one today"
    assert [step for step in steps[:-1] if step.difference] == []
    assert first in last.recorded
    assert len(steps) < len(job.told)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sequence": 10**6}, "was written then, and is not today"),
        ({"sequence": 0}, "0 facts followed then"),
        ({"instructions": 77}, "77 instructions followed then"),
        ({"failed": True}, "the code of then failed, today's does not"),
    ],
)
def test_what_followed_is_compared_as_well(change: dict[str, Any], text: str) -> None:
    """More or fewer facts, more or fewer instructions, a fault of the core."""
    job = troubled(1)
    before, facts = job.facts(0)
    told = [*job.told[:20], dataclasses.replace(job.told[20], **change), *job.told[21:]]
    steps = list(redecide(HEAD, told, before, facts))
    assert len(steps) == 22
    assert text in steps[-1].difference


def test_a_journal_that_does_not_reach_the_recording_is_said() -> None:
    """Without the state that it began with nothing can be decided again."""
    job = troubled(2, papers_every=50)
    first, opened = list(job.kept.items())[-1]
    with pytest.raises(ReplayError, match="the journal before it can be read up to 3"):
        list(redecide(opened, job.told[first:], job.records[:3], {}))


@pytest.mark.parametrize(
    ("found", "changed"),
    [
        (b'"warm"', b'"wram"'),
        (b'"job.roster.Roster"', b'"job.roster.Boaster"'),
        (b'"job.roster.Roster"', b'"os.path"'),
        (b'"ledger"', b'"legder"'),
    ],
)
def test_papers_of_another_release_are_refused_with_the_remedy(
    found: bytes, changed: bytes
) -> None:
    """An unknown field, class or part of the desk is never guessed."""
    job = troubled(2, papers_every=50)
    first, opened = list(job.kept.items())[-1]
    text = zlib.decompress(opened.papers).replace(found, changed, 1)
    other = dataclasses.replace(opened, papers=zlib.compress(text))
    before, facts = job.facts(opened.sequence)
    with pytest.raises(ReplayError, match=r"replay it with holdfast 0\.1\.0"):
        list(redecide(other, job.told[first:], before, facts))
