"""Compaction of the journal: nothing is lost at any moment, and it does not grow without bound."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_master import durable_files, framing
from holdfast_master.compaction import CompactionError, Retention, choose_cut, compact
from holdfast_master.core import Core
from holdfast_master.history import History, read_history
from holdfast_master.job.state import JobState
from holdfast_master.journal import Journal
from holdfast_master.segments import FileName, JournalError, Kind, listing, segment_path
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire import codec
from holdfast_wire.messages import JournalRecord, PastMaster, SegmentOpened
from simulated_job import SimulatedJob, job_spec
from simulated_process import JOB_UID

KEEP_ALL = Retention(seconds=1e9, limit_bytes=1 << 40)
KEEP_NOTHING = Retention(seconds=0.0, limit_bytes=0)
NOW = 1_800_000_000.0
STEPS = ("create", "write", "sync", "rename", "remove", "sync_directory")
EVERY_MASTER = (PastMaster(epoch=1, incarnation="m1", newest_event=3),)


@pytest.fixture(scope="module")
def story() -> list[JournalRecord]:
    """The records of a job with failures, a rescale and a drained node."""
    job = SimulatedJob(job_spec(replicas=4), seed=5)
    agents = job.add_agents(4)
    job.run_until("TRAINING")
    agents[1].crash()
    job.run(30)
    job.change(replicas=3)
    job.run(60)
    job.evict(0)
    job.run(90)
    return job.records


def head(epoch: int = 1) -> SegmentOpened:
    """Return what files of the simulated master begin with."""
    return SegmentOpened(format=2, epoch=epoch, incarnation=f"m{epoch}", job_uid=JOB_UID)


def fold(records: object) -> JobState:
    """Return the state that records come to."""
    settings = CoreSettings()
    state = JobState(event_limit=settings.event_limit, incident_limit=settings.incident_limit)
    for record in records:  # type: ignore[attr-defined]
        state.apply(record)
    return state


def write(journal: Journal, records: list[JournalRecord]) -> None:
    """Write records as the loop does."""
    journal.commit([codec.encode(record) for record in records], durable=True)


def compacted(directory: Path, state: JobState, retention: Retention = KEEP_NOTHING) -> None:
    """Compact as the master of epoch 1 does."""
    compact(directory, head(), state, EVERY_MASTER, retention, NOW)


def read(directory: Path) -> History:
    """Read as a successor does."""
    return read_history(directory, JOB_UID)


def files(directory: Path) -> list[str]:
    """Return the names in the directory."""
    return sorted(path.name for path in directory.iterdir())


class Stopped(BaseException):
    """The process was killed here."""


@dataclasses.dataclass
class Border:
    """Counts the steps at the border to the system, and ends the process at one of them."""

    monkeypatch: pytest.MonkeyPatch
    fatal: int = 10**9
    error: BaseException = dataclasses.field(default_factory=Stopped)
    taken: list[str] = dataclasses.field(default_factory=list)

    def watch(self) -> None:
        """Stand between the code and the system."""
        for name in STEPS:
            self.monkeypatch.setattr(durable_files, name, self._wrap(name))

    def _wrap(self, name: str) -> Callable[..., object]:
        real = getattr(durable_files, name)

        def step(*arguments: object) -> object:
            if len(self.taken) == self.fatal:
                if name == "write":
                    # Half of it is on disk, as after a kill in the middle of a write.
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])  # type: ignore[index, arg-type]
                raise self.error
            self.taken.append(name)
            return real(*arguments)

        return step


@pytest.fixture
def border(monkeypatch: pytest.MonkeyPatch) -> Border:
    """A border that lets everything pass."""
    return Border(monkeypatch)


def test_a_base_folds_to_the_state_of_the_records_that_it_stands_for(
    tmp_path: Path, story: list[JournalRecord]
) -> None:
    """At every tenth point of a job's life; what follows the base leads to the same end."""
    for at in range(1, len(story), 10):
        directory = tmp_path / str(at)
        journal = Journal(directory, 1, "m1")
        write(journal, story[:at])
        journal.ask_rotation()
        write(journal, story[at:])
        compacted(directory, fold(story[:at]))
        journal.close()
        assert files(directory) == [f"base-{at}-1.log", "journal-1-1.log"]
        history = read(directory)
        assert history.base == at
        assert fold(history.records) == fold(story)
        assert (history.notes, history.lost) == ((), False)


def test_every_field_of_the_state_is_in_a_base() -> None:
    """A field that somebody adds to the state must be folded out, or a base would forget it."""
    from holdfast_master.job import folding

    named = set(folding._SAME) | set(folding._lists(fold([])))
    named |= {"draining", "finished", "released", "trained_rounds"}
    renamed = {"ended_steps"}
    of_the_record = {"sequence", "job_seconds"}
    settings = {"event_limit", "incident_limit"}
    fields = {field.name for field in dataclasses.fields(JobState)}
    assert fields == (named - {"worlds_ended"}) | renamed | of_the_record | settings


def test_the_steps_of_a_compaction_are_in_the_only_safe_order(
    tmp_path: Path, story: list[JournalRecord], border: Border
) -> None:
    """Synced before it gets its name; the name synced before anything goes."""
    journal = Journal(tmp_path, 1, "m1")
    write(journal, story)
    border.watch()
    journal.ask_rotation()
    journal.commit([], durable=False)
    assert border.taken == ["create", "write", "sync", "rename", "sync_directory"]
    border.taken.clear()
    compacted(tmp_path, fold(story))
    written = ["create", "write", "sync", "rename", "sync_directory"]
    assert border.taken == [*written, "remove", "sync_directory"]
    journal.close()


@pytest.mark.parametrize("step", range(7))
def test_a_kill_at_any_step_of_a_compaction_loses_nothing(
    tmp_path: Path, story: list[JournalRecord], border: Border, step: int
) -> None:
    """The fold is the same before and after; the next compaction tidies up."""
    journal = Journal(tmp_path, 1, "m1")
    write(journal, story)
    journal.ask_rotation()
    journal.commit([], durable=False)
    state = fold(story)
    border.fatal = step
    with border.monkeypatch.context():
        border.watch()
        with pytest.raises(Stopped):
            compacted(tmp_path, state)
        border.monkeypatch.undo()
    assert fold(read(tmp_path).records) == state
    compacted(tmp_path, state)
    assert files(tmp_path) == [f"base-{state.sequence}-1.log", "journal-1-1.log"]
    assert fold(read(tmp_path).records) == state
    journal.close()


@pytest.mark.parametrize("step", range(5))
def test_a_kill_at_any_step_of_a_rotation_loses_nothing(
    tmp_path: Path, story: list[JournalRecord], border: Border, step: int
) -> None:
    """A new file is there with its head, or not at all."""
    journal = Journal(tmp_path, 1, "m1")
    write(journal, story[:50])
    journal.ask_rotation()
    border.fatal = step
    border.watch()
    with pytest.raises(Stopped):
        write(journal, story[50:])
    border.monkeypatch.undo()
    assert fold(read(tmp_path).records) == fold(story[:50])
    assert read(tmp_path).notes == ()
    os.close(journal._file)  # type: ignore[arg-type]
    again = Journal(tmp_path, 1, "m1")
    write(again, story[50:])
    again.close()
    assert fold(read(tmp_path).records) == fold(story)


@pytest.mark.parametrize("step", range(5))
def test_a_disk_that_refuses_a_step_leaves_the_old_files(
    tmp_path: Path, story: list[JournalRecord], border: Border, step: int
) -> None:
    """A full disk at any step is said with the remedy, and costs nothing."""
    journal = Journal(tmp_path, 1, "m1")
    write(journal, story)
    before = files(tmp_path)
    border.fatal, border.error = step, OSError(28, "No space left on device")
    border.watch()
    with pytest.raises(CompactionError, match="No space left on device; old files stay: make room"):
        compacted(tmp_path, fold(story))
    border.monkeypatch.undo()
    assert set(before) <= set(files(tmp_path))
    assert fold(read(tmp_path).records) == fold(story)
    journal.close()


@pytest.mark.parametrize("step", range(5))
def test_a_disk_that_refuses_a_new_file_leaves_the_writer_with_the_old_one(
    tmp_path: Path, story: list[JournalRecord], border: Border, step: int
) -> None:
    """Records go on into the file that is open; the reason is kept for people."""
    journal = Journal(tmp_path, 1, "m1")
    write(journal, story[:50])
    journal.ask_rotation()
    border.fatal, border.error = step, OSError(28, "No space left on device")
    border.watch()
    write(journal, story[50:])
    border.monkeypatch.undo()
    assert "No space left on device" in journal.rotation_trouble
    assert journal.trouble == ""
    assert fold(read(tmp_path).records) == fold(story)
    journal.close()


def test_what_was_read_back_and_differs_is_no_base(
    tmp_path: Path, story: list[JournalRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that returns something else than was written is found before anything goes."""
    journal = Journal(tmp_path, 1, "m1")
    write(journal, story)
    real = durable_files.sync

    def rot(file: int) -> None:
        real(file)
        os.pwrite(file, b"\0", os.fstat(file).st_size // 2)

    monkeypatch.setattr(durable_files, "sync", rot)
    with pytest.raises(CompactionError, match="is not what was written; old files stay"):
        compacted(tmp_path, fold(story))
    assert "journal-1.log" in files(tmp_path)
    assert fold(read(tmp_path).records) == fold(story)
    journal.close()


def test_a_damaged_base_is_left_out_and_the_facts_are_used(
    tmp_path: Path, story: list[JournalRecord]
) -> None:
    """While the facts are kept, a bad base costs time only; it is said."""
    journal = Journal(tmp_path, 1, "m1")
    write(journal, story)
    compacted(tmp_path, fold(story), KEEP_ALL)
    journal.close()
    (base,) = [path for path in tmp_path.iterdir() if path.name.startswith("base")]
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
    journal = Journal(tmp_path, 1, "m1")
    write(journal, story)
    compacted(tmp_path, fold(story), KEEP_ALL)
    journal.close()
    base = next(name.path for name in listing(tmp_path) if name.kind is Kind.BASE)
    frames = framing.scan(base.read_bytes()).records
    for keep in range(1, len(frames)):
        base.write_bytes(b"".join(map(framing.frame, frames[:keep])))
        history = read(tmp_path)
        assert (history.base, fold(history.records) == fold(story)) == (0, True)
        assert "is not complete" in history.notes[0]


def test_the_base_of_a_zombie_is_left_out(tmp_path: Path, story: list[JournalRecord]) -> None:
    """Its records after the successor had begun are in nobody's state, so not in a base either."""
    journal = Journal(tmp_path, 1, "m1")
    write(journal, story)
    compacted(tmp_path, fold(story), KEEP_ALL)
    journal.close()
    begun = JournalRecord(sequence=101, fact=head(2))
    successor = Journal(tmp_path, 2, "m2")
    write(successor, [begun])
    successor.close()
    history = read(tmp_path)
    assert fold(history.records) == fold([*story[:100], begun])
    assert "was written by a master that had a successor" in history.notes[0]
    with pytest.raises(CompactionError, match="a master of epoch 2 exists"):
        compacted(tmp_path, fold(story))


def test_a_newer_release_is_refused_and_an_older_one_is_read(
    tmp_path: Path, story: list[JournalRecord]
) -> None:
    """Format 1 had no bases and no parts; format 3 is not known."""
    first = dataclasses.replace(story[0], fact=dataclasses.replace(head(), format=1))
    journal = Journal(tmp_path / "old", 1, "m1")
    write(journal, [first, *story[1:]])
    journal.close()
    assert fold(read(tmp_path / "old").records) == fold(story)
    journal = Journal(tmp_path / "new", 1, "m1")
    write(journal, story)
    compact(tmp_path / "new", head(), fold(story), (), KEEP_ALL, NOW)
    journal.close()
    base = next(n.path for n in listing(tmp_path / "new") if n.kind is Kind.BASE)
    newer = JournalRecord(
        sequence=len(story), fact=dataclasses.replace(head(), format=3, base=True, version="9.0")
    )
    base.write_bytes(framing.frame(codec.encode(newer)))
    with pytest.raises(JournalError, match=r"has format 3, written by holdfast 9\.0"):
        read(tmp_path / "new")


def test_the_master_goes_on_after_a_base_as_after_the_records(
    tmp_path: Path, story: list[JournalRecord]
) -> None:
    """A core that is restored from a base and one that is restored from all facts do the same."""
    journal = Journal(tmp_path, 1, "m1")
    write(journal, story)
    compacted(tmp_path, fold(story))
    journal.close()
    identity = CoreIdentity(
        job_name="job", job_uid=JOB_UID, epoch=2, incarnation="m2", version="0.1.0"
    )
    job = SimulatedJob(job_spec(), seed=1)
    opened = [
        Core.restore(records, identity, CoreSettings()).open(job.moment())
        for records in (story, read(tmp_path).records)
    ]
    assert opened[0] == opened[1]


def test_watch_tokens_of_masters_before_the_base_stay_good(
    tmp_path: Path, story: list[JournalRecord]
) -> None:
    """A base names the masters whose events it holds; the newest event moves on with the tail."""
    journal = Journal(tmp_path, 1, "m1")
    write(journal, story[:50])
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


def _name(kind: Kind, number: int) -> FileName:
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
    bases = [_name(Kind.BASE, number) for number in (100, 200, 300, 400)]
    facts = {_name(Kind.FACTS, part): part * 100 for part in range(5)}
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


KILLED = """
import os, signal, sys
from pathlib import Path
from holdfast_master import durable_files
from holdfast_master.compaction import Retention, compact
from holdfast_master.history import read_history
from holdfast_master.job.state import JobState
from holdfast_wire.messages import SegmentOpened

directory, fatal = Path(sys.argv[1]), int(sys.argv[2])
state = JobState(event_limit=10_000, incident_limit=1_000)
for record in read_history(directory, sys.argv[3]).records:
    state.apply(record)
taken = 0

def wrap(name):
    real = getattr(durable_files, name)
    def step(*arguments):
        global taken
        if taken == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        taken += 1
        return real(*arguments)
    setattr(durable_files, name, step)

for name in ("create", "write", "sync", "rename", "remove", "sync_directory"):
    wrap(name)
head = SegmentOpened(format=2, epoch=1, incarnation="m1", job_uid=sys.argv[3])
compact(directory, head, state, (), Retention(seconds=0.0, limit_bytes=0), 1.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", range(7))
def test_a_process_that_is_killed_while_it_compacts_loses_nothing(
    tmp_path: Path, story: list[JournalRecord], step: int
) -> None:
    """SIGKILL of a real process before each step."""
    directory = tmp_path / "journal"
    journal = Journal(directory, 1, "m1")
    write(journal, story)
    journal.ask_rotation()
    journal.commit([], durable=False)
    journal.close()
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(KILLED))
    done = subprocess.run(
        [sys.executable, str(script), str(directory), str(step), JOB_UID],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert fold(read(directory).records) == fold(story)


def test_an_epochs_second_file_belongs_to_the_same_master(
    tmp_path: Path, story: list[JournalRecord]
) -> None:
    """Two files of one epoch by different masters: the first one counts; it is said."""
    journal = Journal(tmp_path, 1, "m1")
    write(journal, story)
    journal.close()
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
