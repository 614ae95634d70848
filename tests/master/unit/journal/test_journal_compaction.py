"""Compaction of the journal: a base says what its facts say, and the journal stays short."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from holdfast_master.core import Core
from holdfast_master.job.state import snapshot
from holdfast_master.job.state.apply import apply
from holdfast_master.job.state.job_state import PROMISED
from holdfast_master.journal import framing
from holdfast_master.journal.compaction import CompactionError, Retention, choose_cut, compact
from holdfast_master.journal.reader import read_history
from holdfast_master.journal.segments import (
    FileName,
    JournalError,
    SegmentKind,
    listing,
    segment_path,
)
from holdfast_master.journal.writer import Journal
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire import codec
from holdfast_wire.messages import JournalRecord, NodeMarked, PastMaster
from masters.journals import (
    EVERY_MASTER,
    KEEP_ALL,
    KEEP_NOTHING,
    NOW,
    compacted,
    files,
    fold,
    head,
    read,
    troubled_story,
    write,
    written,
)
from simulation.steered.job import JOB_UID, SteeredJob, job_spec


@pytest.fixture(scope="module")
def story() -> list[JournalRecord]:
    """The records of a job with failures, a rescale and a drained node."""
    return troubled_story()


def only_base(directory: Path) -> Path:
    """Return the journal's base."""
    (base,) = [name.path for name in listing(directory) if name.kind is SegmentKind.BASE]
    return base


def test_a_base_folds_to_the_state_of_the_records_that_it_stands_for(
    tmp_path: Path, story: list[JournalRecord]
) -> None:
    """At every tenth point of a job's life; what follows the base leads to the same end."""
    for at in range(1, len(story), 10):
        directory = tmp_path / str(at)
        journal = written(directory, story[:at])
        journal.ask_rotation()
        write(journal, story[at:])
        compacted(directory, fold(story[:at]))
        journal.close()
        assert files(directory) == [f"base-{at}-1.log", "journal-1-1.log"]
        history = read(directory)
        assert history.base == at
        assert fold(history.records) == fold(story)
        assert (history.notes, history.lost) == ((), False)


def test_what_an_earlier_master_promised_is_in_a_base() -> None:
    """Of agents that may still come, until they have."""
    state = fold([])
    for value, there in ((True, {"a7"}), (False, set())):
        fact = NodeMarked(agent_id="a7", mark=PROMISED, value=value)
        apply(state, JournalRecord(sequence=state.sequence + 1, fact=fact))
        again = fold([])
        for part in snapshot.parts_of(state, ()):
            snapshot.load(again, part)
        assert again.promised == state.promised == there


def test_a_damaged_base_is_left_out_and_the_facts_are_used(
    tmp_path: Path, story: list[JournalRecord]
) -> None:
    """While the facts are kept, a bad base costs time only; it is said."""
    written(tmp_path, story).close()
    compacted(tmp_path, fold(story), KEEP_ALL)
    base = only_base(tmp_path)
    data = bytearray(base.read_bytes())
    data[len(data) // 2] ^= 4
    base.write_bytes(bytes(data))
    history = read(tmp_path)
    assert history.base == 0
    assert fold(history.records) == fold(story)
    assert "an older base or the facts themselves are used instead" in history.notes[0]
    assert not history.lost


def test_a_base_that_is_cut_short_is_left_out(tmp_path: Path, story: list[JournalRecord]) -> None:
    """Every part of it must be there."""
    written(tmp_path, story).close()
    compacted(tmp_path, fold(story), KEEP_ALL)
    base = only_base(tmp_path)
    frames = framing.scan(base.read_bytes()).records
    for keep in range(1, len(frames)):
        base.write_bytes(b"".join(map(framing.frame, frames[:keep])))
        history = read(tmp_path)
        assert (history.base, fold(history.records) == fold(story)) == (0, True)
        assert "is not complete" in history.notes[0]


def test_the_base_of_a_zombie_is_left_out(tmp_path: Path, story: list[JournalRecord]) -> None:
    """Its records after the successor had begun are in nobody's state, so not in a base either."""
    written(tmp_path, story).close()
    compacted(tmp_path, fold(story), KEEP_ALL)
    begun = JournalRecord(sequence=101, fact=head(2))
    successor = Journal(tmp_path, 2, "m2")
    write(successor, [begun])
    successor.close()
    history = read(tmp_path)
    assert fold(history.records) == fold([*story[:100], begun])
    assert "was written by a master that had a successor" in history.notes[0]
    with pytest.raises(CompactionError, match="a master of epoch 2 exists"):
        compacted(tmp_path, fold(story))


@pytest.mark.parametrize("number", [3, 5])
def test_a_base_of_another_format_is_refused(
    tmp_path: Path, story: list[JournalRecord], number: int
) -> None:
    """Its facts would be read wrong, be they older or newer; the text says what reads them."""
    written(tmp_path, story).close()
    compacted(tmp_path, fold(story), KEEP_ALL)
    base = only_base(tmp_path)
    other = dataclasses.replace(head(), format=number, base=True, version="9.0")
    newer = JournalRecord(sequence=len(story), fact=other)
    base.write_bytes(framing.frame(codec.encode(newer)))
    with pytest.raises(JournalError, match=rf"has format {number}, written by holdfast 9\.0"):
        read(tmp_path)


def test_the_master_goes_on_after_a_base_as_after_the_records(
    tmp_path: Path, story: list[JournalRecord]
) -> None:
    """A core that is restored from a base and one that is restored from all facts do the same."""
    written(tmp_path, story).close()
    compacted(tmp_path, fold(story))
    identity = CoreIdentity(
        job_name="job", job_uid=JOB_UID, epoch=2, incarnation="m2", version="0.1.0"
    )
    job = SteeredJob(job_spec(), seed=1)
    opened = [
        Core(identity, CoreSettings(), records).open(job.moment())
        for records in (story, read(tmp_path).records)
    ]
    assert opened[0] == opened[1]


def test_watch_tokens_of_masters_before_the_base_stay_good(
    tmp_path: Path, story: list[JournalRecord]
) -> None:
    """A base names the masters whose events it holds; the newest event moves on with the tail."""
    journal = written(tmp_path, story[:50])
    journal.ask_rotation()
    write(journal, story[50:])
    masters = (PastMaster(epoch=0, incarnation="m0", newest_event=2), *EVERY_MASTER)
    compact(tmp_path, head(), fold(story[:50]), masters, KEEP_NOTHING, NOW)
    journal.close()
    newest = fold(story).event_sequence
    assert read(tmp_path).masters == (
        PastMaster(epoch=0, incarnation="m0", newest_event=2),
        PastMaster(epoch=1, incarnation="m1", newest_event=newest),
    )


def _name(kind: SegmentKind, number: int) -> FileName:
    return FileName(Path(f"{kind.value}-{number}"), kind, 1, number)


@pytest.mark.parametrize(
    ("seconds", "limit", "expected"),
    [
        (1e9, 10_000, None),
        (350.0, 10_000, 100),
        (250.0, 10_000, 200),
        (150.0, 10_000, 300),
        (0.0, 10_000, 400),
        (1e9, 850, 100),
        (1e9, 450, 300),
        (1e9, 0, 400),
    ],
    ids=["all", "350 s", "250 s", "150 s", "nothing", "many bytes", "few bytes", "no bytes"],
)
def test_what_goes_is_chosen_by_age_and_by_size(
    seconds: float, limit: int, expected: int | None
) -> None:
    """Facts are kept for the time that was declared, and never more bytes than declared."""
    bases = [_name(SegmentKind.BASE, number) for number in (100, 200, 300, 400)]
    facts = {_name(SegmentKind.FACTS, part): part * 100 for part in range(5)}
    sizes = dict.fromkeys([*bases, *facts], 100)
    ages = {100: 1000.0 - 400, 200: 1000.0 - 300, 300: 1000.0 - 200, 400: 1000.0 - 100}
    cut = choose_cut(
        bases,
        dict(facts),
        sizes,
        Retention(seconds=seconds, limit_bytes=limit),
        1000.0,
        lambda name: ages[name.number],
    )
    assert (cut.number if cut else None) == expected


def test_facts_are_kept_for_the_time_that_was_declared(
    tmp_path: Path, story: list[JournalRecord]
) -> None:
    """A base does not take away what people still want to look at; a later one does."""
    journal = Journal(tmp_path, 1, "m1")
    parts = (story[:40], story[40:80], story[80:])
    for number, part in enumerate(parts):
        write(journal, part)
        journal.ask_rotation()
        journal.commit([], durable=False)
        state = fold([record for done in parts[: number + 1] for record in done])
        hour = Retention(seconds=3600.0, limit_bytes=1 << 30)
        compact(tmp_path, head(), state, EVERY_MASTER, hour, NOW + 1800.0 * number)
    journal.close()
    assert files(tmp_path) == [
        f"base-{len(story)}-1.log",
        "base-40-1.log",
        "base-80-1.log",
        "journal-1-1.log",
        "journal-1-2.log",
        "journal-1-3.log",
    ]
    for upto in (40, 60, 80, len(story)):
        records = read_history(tmp_path, JOB_UID, upto=upto).records
        known = [record for record in records if record.sequence <= upto]
        assert fold(known) == fold(story[:upto])


def test_an_epochs_second_file_belongs_to_the_same_master(
    tmp_path: Path, story: list[JournalRecord]
) -> None:
    """Two files of one epoch by different masters: the first one counts; it is said."""
    written(tmp_path, story).close()
    foreign = JournalRecord(
        sequence=len(story), fact=dataclasses.replace(head(), part=1, incarnation="other")
    )
    more = dataclasses.replace(story[-1], sequence=len(story) + 1)
    path = segment_path(tmp_path, 1, 1)
    path.write_bytes(b"".join(framing.frame(codec.encode(r)) for r in (foreign, more)))
    history = read(tmp_path)
    assert fold(history.records) == fold(story)
    assert "but that epoch is m1's; it is left out" in history.notes[0]
    assert history.lost
