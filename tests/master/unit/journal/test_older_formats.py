"""Journals of older formats: what had a field for each tier becomes messages by tier."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from holdfast_master.journal import framing, older_formats
from holdfast_master.journal.segments import FORMAT, read_segment, segment_path
from holdfast_wire import codec
from holdfast_wire.messages import (
    CheckpointPolicy,
    JobFolded,
    JournalRecord,
    MasterSpec,
    ScheduleConfirmed,
    SegmentOpened,
    SpecAccepted,
    Tier,
    TierFailures,
    TierInterval,
    WorldDecided,
    WorldMember,
)

MOST = 2**31 - 1


def _intervals(memory: int, storage: int) -> tuple[TierInterval, ...]:
    return (
        TierInterval(tier=Tier.MEMORY, every=memory),
        TierInterval(tier=Tier.STORAGE, every=storage),
    )


SPEC = MasterSpec(
    generation=2,
    replicas=1,
    checkpoint=CheckpointPolicy(keep_last=3, intervals=_intervals(5, MOST)),
)
WORLD = WorldDecided(
    round=4,
    members=(WorldMember(agent_id="a", local_world_size=1),),
    intervals=_intervals(1, 100),
)
SCHEDULE = ScheduleConfirmed(round=4, schedule_id=9, step=77, intervals=_intervals(300, 0))
FOLDED = JobFolded(
    first=True,
    last=True,
    spec=SPEC,
    world=WORLD,
    assigned=WORLD,
    schedule=SCHEDULE,
    tier_failures=(
        TierFailures(tier=Tier.MEMORY, count=2),
        TierFailures(tier=Tier.STORAGE, count=1),
    ),
)
WRITTEN: dict[str, SpecAccepted | WorldDecided | ScheduleConfirmed | JobFolded] = {
    "08072a140a120802100178058001ffffffff079a01020803": SpecAccepted(spec=SPEC),
    "08072a060a0408021001": SpecAccepted(spec=MasterSpec(generation=2, replicas=1)),
    "08072a0c0a0a0802100188010a900164": SpecAccepted(
        spec=MasterSpec(
            generation=2, replicas=1, checkpoint=CheckpointPolicy(keep_last=10, keep_every=100)
        )
    ),
    "0807420d10041a05120161180150015864": WORLD,
    "0807ba010908041009184d20ac02": SCHEDULE,
    "0807aa014a0801100132120802100178058001ffffffff079a01020803a2010d10041a05120161180150015864"
    "aa010d10041a05120161180150015864ea020908041009184d20ac02f00202f80201": FOLDED,
}
"""Records as the last master wrote them whose journal had format 3, and what they say."""


@pytest.mark.parametrize("written", WRITTEN, ids=lambda text: f"{len(text) // 2}-bytes")
def test_a_record_of_format_3_says_the_same_by_tier(written: str) -> None:
    """Intervals of specs, worlds and schedules, and the failures in a base."""
    record = older_formats.decode(bytes.fromhex(written))
    assert record == JournalRecord(sequence=7, fact=WRITTEN[written])


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_a_file_s_format_decides_how_its_records_are_read(number: int, tmp_path: Path) -> None:
    """What this release writes reads alike; reserved fields count in older files alone."""
    head = SegmentOpened(format=number, epoch=1, incarnation="m1", job_uid="uid")
    old = next(data for data, fact in WRITTEN.items() if fact is WORLD)
    records = [
        codec.encode(JournalRecord(sequence=6, fact=head)),
        bytes.fromhex(old),
        codec.encode(JournalRecord(sequence=8, fact=SCHEDULE)),
    ]
    path = segment_path(tmp_path, 1)
    path.write_bytes(b"".join(map(framing.frame, records)))
    facts = [record.fact for record in read_segment(path).facts[1:]]
    unread = dataclasses.replace(WORLD, intervals=())
    assert facts == [unread if number == FORMAT else WORLD, SCHEDULE]


def test_a_record_that_is_none_is_an_error_of_the_wire() -> None:
    """A damaged record of an older journal is told as one of this format is."""
    with pytest.raises(codec.WireError, match="3 bytes are no JournalRecord"):
        older_formats.decode(b"\xff\xff\xff")
