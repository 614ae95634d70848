"""Recorded inputs are decided again: the same code, the same facts; other code, the difference."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast_master.core import Core
from holdfast_master.inputs import Input, Moment
from holdfast_master.instructions import Instruction, Record
from holdfast_master.job.worlds import rounds
from holdfast_master.replay import replayer
from holdfast_master.replay.codec import to_message
from holdfast_master.replay.replayer import ReplayedInput, ReplayError, redecide
from holdfast_wire import messages as wire
from masters.journals import RECORDING, differences
from simulation.steered.job import SteeredJob, job_spec

HEAD = dataclasses.replace(RECORDING, settings="{}")


class RecordedJob(SteeredJob):
    """A simulated job whose inputs are recorded."""

    def __init__(self, spec: wire.MasterSpec, **more: Any) -> None:
        self.told: list[wire.InputRecorded] = []
        super().__init__(spec, **more)
        self.head = dataclasses.replace(HEAD, mono=self.master.mono, unix_time=self.master.wall)

    def decide(self, core: Core, event: Input, moment: Moment) -> list[Instruction]:
        """Record an input as the shell does."""
        batch = super().decide(core, event, moment)
        self.told.append(
            wire.InputRecorded(
                mono=moment.mono,
                unix_time=moment.unix,
                sequence=self.core.job.state.sequence,
                instructions=sum(not isinstance(item, Record) for item in batch),
                input=to_message(event),
            )
        )
        return batch

    def again(
        self, opened: wire.RecordingOpened | None = None, told: Sequence[wire.InputRecorded] = ()
    ) -> list[ReplayedInput]:
        """Decide again what it was told, or `told` behind another head."""
        opened = opened or self.head
        before, facts = replayer.split(self.records, opened.sequence, opened.epoch)
        return list(redecide(opened, told or self.told, before, facts))


def troubled(seed: int, **more: Any) -> RecordedJob:
    """Return a job that has had faults of every kind, drawn from the seed."""
    job = RecordedJob(job_spec(replicas=4, standbys=1), seed=seed, **more)
    job.add_agents(5)
    chance = random.Random(seed)
    kinds: tuple[Callable[[], object], ...] = (
        lambda: job.agents[chance.randrange(3)].crash(-9),
        lambda: job.evict(chance.randrange(3)),
        lambda: job.operator.change(replicas=chance.randrange(2, 5)),
        lambda: job.ask(wire.DrainNodeRequest(node_rank=chance.randrange(3), reason="test")),
        lambda: job.ask(wire.RestartWorkerRequest(reason="test")),
        lambda: job.ask(wire.DumpStacksRequest()),
        lambda: job.ask(wire.ScaleRequest(replicas=3)),
        lambda: job.stall_master(2.0),
        job.operator.leave,
        job.operator.come_back,
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
    steps = job.again()
    assert differences(steps) == [], f"seed {seed}"
    assert len(steps) == len(job.told) + 1, f"seed {seed}"
    again = [record for step in steps for record in step.records]
    assert again == job.records, f"seed {seed}"


def test_a_departure_that_was_announced_is_decided_the_same() -> None:
    """By an agent, and by the operator of a node that has a taint."""
    job = RecordedJob(job_spec(replicas=4, standbys=1))
    job.add_agents(5)
    job.run(5.0)
    spot = wire.NoticeReceived(
        kind=wire.NoticeKind.PREEMPTION, source="file", text="spot", seconds_left=9.0
    )
    job.agents[1].report(spot)
    job.run(15.0)
    job.pods[2] = dataclasses.replace(job.pods[2], notice=dataclasses.replace(spot, source="node"))
    job.operator.observe(2)
    job.run(30.0)
    steps = job.again()
    assert differences(steps) == []
    assert [record for step in steps for record in step.records] == job.records
    assert job.reasons().count("NodeDraining") == 2


@pytest.mark.parametrize("seed", range(4))
def test_a_successor_s_recording_is_decided_the_same(seed: int) -> None:
    """It begins with its own master: the journal up to there is all that it needs."""
    job = troubled(seed)
    job.kill_master()
    job.run(1.0)
    begun, first = len(job.records), len(job.told)
    job.start_master()
    identity, now = job.master.identity, job.master.moment()
    opened = dataclasses.replace(
        HEAD,
        epoch=identity.epoch,
        incarnation=identity.incarnation,
        mono=now.mono,
        unix_time=now.unix,
        sequence=begun,
    )
    job.run(30.0)
    steps = job.again(opened, job.told[first:])
    assert differences(steps) == [], f"seed {seed}"
    assert [record for step in steps for record in step.records] == job.records[begun:]


def test_facts_that_a_killed_master_did_not_write_are_not_compared_with_its_successor_s() -> None:
    """The successor's facts have the numbers of those; the others are compared."""
    job = troubled(5)
    recorded, decided = list(job.told), len(job.records)
    lost = next(at for at, one in enumerate(recorded) if one.sequence == decided)
    written = recorded[lost - 1].sequence
    assert written < decided
    job.kill_master()
    job.start_master()
    job.run(5.0)
    journal = job.records[:written] + [
        dataclasses.replace(record, sequence=record.sequence - decided + written)
        for record in job.records[decided:]
    ]
    assert len(journal) > written
    before, facts = replayer.split(journal, 0, HEAD.epoch)
    steps = list(redecide(job.head, recorded, before, facts))
    assert differences(steps) == []
    assert sum(len(step.recorded) for step in steps) == written


def test_changed_code_shows_at_its_first_other_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference names the record; nothing is decided after it."""
    job = troubled(3)
    real = wire.WorldDecided

    def other(**fields: Any) -> object:
        return real(**{**fields, "reason": "for another reason"})

    monkeypatch.setattr(rounds, "WorldDecided", other)
    steps = job.again()
    last = steps[-1]
    first = next(r for r in job.records if type(r.fact).__name__ == "WorldDecided")
    assert last.difference == f"record {first.sequence} is another one today"
    assert differences(steps[:-1]) == []
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
    told = [*job.told[:20], dataclasses.replace(job.told[20], **change), *job.told[21:]]
    steps = job.again(told=told)
    assert len(steps) == 22
    assert text in steps[-1].difference


def test_a_journal_that_does_not_reach_the_recording_is_said() -> None:
    """Without the state that it began with nothing can be decided again."""
    job = troubled(2)
    opened = dataclasses.replace(HEAD, epoch=2, sequence=50)
    with pytest.raises(ReplayError, match="the journal before it can be read up to 3"):
        list(redecide(opened, job.told, job.records[:3], {}))
