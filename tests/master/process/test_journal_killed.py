"""A writer of the journal that is killed, or refused, between any two steps: nothing is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast_master.journal import filesystem
from holdfast_master.journal.compaction import CompactionError
from holdfast_master.journal.writer import Journal
from holdfast_wire.messages import JournalRecord
from house.programs import script
from masters.journals import (
    Border,
    Stopped,
    compacted,
    files,
    fold,
    on_own_disk,
    read,
    troubled_story,
    write,
    written,
)
from simulation.steered.job import JOB_UID


@pytest.fixture(scope="module")
def story() -> list[JournalRecord]:
    """The records of a job with failures, a rescale and a drained node."""
    return troubled_story()


@pytest.fixture
def border(monkeypatch: pytest.MonkeyPatch) -> Border:
    """A border that lets everything pass."""
    return Border(monkeypatch)


def test_the_steps_of_a_compaction_are_in_the_only_safe_order(
    tmp_path: Path, story: list[JournalRecord], border: Border
) -> None:
    """Synced before it gets its name; the name synced before anything goes."""
    journal = written(tmp_path, story)
    border.watch()
    journal.ask_rotation()
    journal.commit([], durable=False)
    begun = ["create", "write", "sync", "rename", "sync_directory"]
    assert border.taken == begun
    border.taken.clear()
    compacted(tmp_path, fold(story))
    assert border.taken == [*begun, "remove", "sync_directory"]
    journal.close()


@pytest.mark.parametrize("step", range(7))
def test_a_kill_at_any_step_of_a_compaction_loses_nothing(
    tmp_path: Path, story: list[JournalRecord], border: Border, step: int
) -> None:
    """The fold is the same before and after; the next compaction tidies up."""
    journal = written(tmp_path, story)
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
    half = next(at for at in range(50, len(story)) if not story[at - 1].more)
    journal = written(tmp_path, story[:half])
    journal.ask_rotation()
    border.fatal = step
    border.watch()
    with pytest.raises(Stopped):
        write(journal, story[half:])
    border.monkeypatch.undo()
    assert fold(read(tmp_path).records) == fold(story[:half])
    assert read(tmp_path).notes == ()
    os.close(journal._file)  # type: ignore[arg-type]
    again = Journal(tmp_path, 1, "m1")
    write(again, story[half:])
    again.close()
    assert fold(read(tmp_path).records) == fold(story)


@pytest.mark.parametrize("step", range(5))
def test_a_disk_that_refuses_a_step_leaves_the_old_files(
    tmp_path: Path, story: list[JournalRecord], border: Border, step: int
) -> None:
    """A full disk at any step is said with the remedy, and costs nothing."""
    journal = written(tmp_path, story)
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
    journal = written(tmp_path, story[:50])
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
    journal = written(tmp_path, story)
    real = filesystem.sync

    def rot(file: int) -> None:
        real(file)
        os.pwrite(file, b"\0", os.fstat(file).st_size // 2)

    monkeypatch.setattr(filesystem, "sync", rot)
    with pytest.raises(CompactionError, match="is not what was written; old files stay"):
        compacted(tmp_path, fold(story))
    assert "journal-1.log" in files(tmp_path)
    assert fold(read(tmp_path).records) == fold(story)
    journal.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from holdfast_master.journal import filesystem
from holdfast_master.journal.compaction import Retention, compact
from holdfast_master.journal.reader import read_history
from holdfast_master.job.state.apply import apply
from holdfast_master.job.state.job_state import JobState
from holdfast_wire.messages import SegmentOpened

directory, fatal = Path(sys.argv[1]), int(sys.argv[2])
state = JobState(event_limit=10_000, incident_limit=1_000)
for record in read_history(directory, sys.argv[3]).records:
    apply(state, record)
taken = 0

def wrap(name):
    real = getattr(filesystem, name)
    def step(*arguments):
        global taken
        if taken == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        taken += 1
        return real(*arguments)
    setattr(filesystem, name, step)

for name in ("create", "write", "sync", "rename", "remove", "sync_directory"):
    wrap(name)
head = SegmentOpened(format=4, epoch=1, incarnation="m1", job_uid=sys.argv[3])
compact(directory, head, state, (), Retention(seconds=0.0, limit_bytes=0), 1.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", range(7))
def test_a_process_that_is_killed_while_it_compacts_loses_nothing(
    tmp_path: Path, story: list[JournalRecord], step: int
) -> None:
    """SIGKILL of a real process before each step."""
    directory = tmp_path / "journal"
    journal = written(directory, story)
    journal.ask_rotation()
    journal.commit([], durable=False)
    journal.close()
    done = script(KILLED, str(directory), str(step), JOB_UID)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert fold(read(directory).records) == fold(story)


FULL = """
import os, sys
from pathlib import Path
from holdfast_master.journal.compaction import CompactionError
from holdfast_master.journal.writer import Journal
from masters.journals import compacted, files, fold, read, troubled_story, written

directory = Path(sys.argv[1])
mount = lambda options: os.system(f"mount -o {options} {directory}") == 0
os.system(f"mount -t tmpfs -o size=40k none {directory}") == 0 or sys.exit(77)
story = troubled_story()
journal = written(directory, story)
state = fold(story)
filler = directory / "filler"
try:
    filler.write_bytes(bytes(40 * 1024))
except OSError:
    pass

def attempt():
    try:
        compacted(directory, state)
    except CompactionError as error:
        return str(error)
    return "done"

print("full:", journal.trouble, attempt(), fold(read(directory).records) == state)
assert mount("remount,size=1m")
journal.close()
assert mount("remount,ro")
print("read-only:", attempt(), fold(read(directory).records) == state)
assert mount("remount,rw")
journal = Journal(directory, 1, "m1")
filler.unlink()
print("room:", attempt(), fold(read(directory).records) == state, len(files(directory)))
"""


def test_a_really_full_and_a_really_read_only_disk(tmp_path: Path) -> None:
    """On a tiny file system: said with the remedy, nothing lost, and made up for with room."""
    lines = on_own_disk(tmp_path, FULL)
    assert "No space left on device; old files stay: make room True" in lines[0]
    assert "Read-only file system" in lines[1]
    assert lines[1].endswith("make room True")
    assert lines[2] == "room: done True 2"
