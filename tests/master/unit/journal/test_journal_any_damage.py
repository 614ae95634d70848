"""Any damage to any file of a journal: never an exception, never a wrong record, said in words."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_master.job.state.job_state import JobState
from holdfast_master.journal.compaction import compact
from holdfast_master.journal.segments import JournalError, listing, segment_path
from holdfast_master.journal.writer import Journal
from holdfast_master.replay.inspect import show, verify
from holdfast_master.replay.inspect.verify import JournalVerdict
from holdfast_wire.messages import JournalRecord, SegmentOpened
from masters.journals import KEEP_ALL, NOW, fold, head, read, write
from simulation.steered.job import SteeredJob, job_spec


@functools.cache
def story() -> tuple[JournalRecord, ...]:
    """Records of a job under two masters."""
    job = SteeredJob(job_spec(replicas=3), seed=2)
    agents = job.add_agents(3)
    job.run_until("TRAINING")
    agents[1].crash()
    job.run(20)
    job.kill_master()
    job.start_master()
    job.run(10)
    job.agents[0].crash()
    job.run(20)
    return tuple(job.records)


@functools.cache
def states() -> tuple[JobState, ...]:
    """The state after each number of records."""
    return tuple(fold(story()[:count]) for count in range(len(story()) + 1))


@functools.cache
def whole() -> Path:
    """A journal of two epochs, three files of facts and two bases, all of it kept."""
    directory = Path(tempfile.mkdtemp(prefix="journal-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    records = story()
    second = next(
        at
        for at, record in enumerate(records)
        if isinstance(record.fact, SegmentOpened) and record.fact.epoch == 2
    )
    parts = {1: (records[: second // 2], records[second // 2 : second]), 2: (records[second:],)}
    done = 0
    for epoch, pieces in parts.items():
        journal = Journal(directory, epoch, f"m{epoch}")
        for piece in pieces:
            write(journal, list(piece))
            done += len(piece)
            if done < len(records):
                compact(directory, head(epoch), fold(records[:done]), (), KEEP_ALL, NOW)
                journal.ask_rotation()
        journal.close()
    return directory


def tail_bytes() -> int:
    """Return the length of the newest file of facts."""
    return segment_path(whole(), 2).stat().st_size


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the journal that may be damaged."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "journal"
        shutil.copytree(whole(), directory)
        yield directory


@dataclasses.dataclass(frozen=True)
class Wound:
    """Something done to one file."""

    file: int
    kind: str
    place: float
    """Share of the file's length."""
    length: int

    def inflict(self, directory: Path) -> None:
        """Do it."""
        names = listing(directory)
        if not names:
            return
        path = names[self.file % len(names)].path
        data = bytearray(path.read_bytes())
        at = int(self.place * len(data))
        if self.kind == "remove":
            path.unlink()
            return
        if self.kind == "cut":
            del data[at:]
        elif self.kind == "flip" and data:
            data[min(at, len(data) - 1)] ^= 1 << self.length % 8
        elif self.kind == "zero":
            data[at : at + self.length] = bytes(len(data[at : at + self.length]))
        elif self.kind == "noise":
            noise = random.Random(self.length).randbytes(self.length)
            data[at : at + self.length] = noise[: len(data) - at]
        elif self.kind == "hole":
            del data[at : at + self.length]
        elif self.kind == "repeat":
            data[at:at] = data[at : at + self.length]
        elif self.kind == "foreign":
            data = bytearray(b"not a journal\n" * self.length)
        path.write_bytes(bytes(data))


WOUNDS = st.builds(
    Wound,
    file=st.integers(0, 4),
    kind=st.sampled_from(["remove", "cut", "flip", "zero", "noise", "hole", "repeat", "foreign"]),
    place=st.floats(0.0, 1.0, exclude_max=True),
    length=st.integers(1, 600),
)


def test_an_undamaged_journal_is_read_from_its_newest_base() -> None:
    """The journal that the other tests damage is whole."""
    history = read(whole())
    assert (history.base > 0, history.notes, history.lost) == (True, (), False)
    assert fold(history.records) == states()[-1]
    assert verify.verify(whole()).verdict is JournalVerdict.INTACT


@given(wounds=st.lists(WOUNDS, min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_whatever_is_damaged_a_true_state_is_read(wounds: list[Wound]) -> None:
    """The state is one that the job had; where it is not the newest, that is said and counted."""
    with copied() as directory:
        for wound in wounds:
            wound.inflict(directory)
        history = read(directory)
        newest = history.records[-1].sequence if history.records else 0
        assert fold(history.records) == states()[newest]
        if newest < len(story()):
            tail = segment_path(directory, 2)
            # A tail that is shorter cannot be told from one that was never longer.
            shorter = not tail.exists() or tail.stat().st_size < tail_bytes()
            assert history.lost or shorter or "unfinished record" in str(history.notes)
            assert history.notes or shorter


@given(wounds=st.lists(WOUNDS, min_size=1, max_size=2))
@settings(max_examples=60, deadline=None)
def test_the_tools_read_any_damage(wounds: list[Wound]) -> None:
    """Verify finds what a master would find; show gives true facts only."""
    with copied() as directory:
        for wound in wounds:
            wound.inflict(directory)
        try:
            report = verify.verify(directory)
            shown = list(show.everything(directory).facts)
        except JournalError:
            # Not one head is left: there is nothing to look at, and that is what it says.
            assert not read(directory).records
            return
        known = {record.sequence: record for record in story()}
        assert [record for record in shown if known[record.sequence] != record] == []
        assert [record.sequence for record in shown] == sorted({r.sequence for r in shown})
        assert (report.verdict is JournalVerdict.LOST) == read(directory).lost


@given(wound=WOUNDS)
@settings(max_examples=60, deadline=None)
def test_one_damaged_file_costs_nothing_while_old_facts_are_kept(wound: Wound) -> None:
    """Any one file but the newest: a base stands for old facts, and old facts for a base."""
    with copied() as directory:
        newest = segment_path(directory, 2).read_bytes()
        wound.inflict(directory)
        tail = segment_path(directory, 2)
        if not tail.exists() or tail.read_bytes() != newest:
            return
        history = read(directory)
        assert fold(history.records) == states()[-1]
        assert not history.lost
