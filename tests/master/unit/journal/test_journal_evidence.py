"""`journal verify`, `show` and `replay` where something is gone and nothing shows it at once."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_master.journal.segments import read_segment, segment_path
from holdfast_master.replay.inspect import replay, show, verify
from holdfast_master.replay.inspect.verify import JournalVerdict
from holdfast_master.replay.recorder import InputRecorder
from holdfast_wire.messages import JournalRecord
from masters.journals import KEEP_ALL, RECORDING, RecordedJob, compacted, fold, head, write, written

LAST = "journal-1-1.log"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of two files of facts, the base between them, and the inputs of it all."""
    directory = tmp_path_factory.mktemp("whole")
    recorder = InputRecorder(directory, RECORDING, 10_000_000)
    job = RecordedJob(recorder, replicas=3, seed=6)
    agents = job.add_agents(3)
    job.run_until("TRAINING")
    cut = len(job.records)
    agents[1].crash()
    job.run(60)
    recorder.close()
    journal = written(directory, job.records[:cut])
    journal.ask_rotation()
    write(journal, job.records[cut:])
    journal.close()
    compacted(directory, fold(job.records[:cut]), KEEP_ALL)
    return directory


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """A copy to be hurt."""
    return Path(shutil.copytree(whole, tmp_path / "journal"))


def _play(directory: Path) -> tuple[int, list[str]]:
    said: list[str] = []
    player = replay.Player(directory, replay.Span(), said.append)
    return player.play(lambda: None), said


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _half(path: Path) -> None:
    # At a record's border: nothing in the file shows that it was ever longer.
    records = len(read_segment(path).records)
    path.write_bytes(path.read_bytes()[: _border(path, records // 2)])


def _border(path: Path, records: int) -> int:
    data, at = path.read_bytes(), 0
    for _ in range(records):
        at += 12 + int.from_bytes(data[at + 4 : at + 8], "little")
    return at


def test_a_whole_journal_is_intact(copy: Path) -> None:
    """The journal that the other tests damage is intact."""
    report = verify.verify(copy)
    assert (report.verdict, report.notes) == (JournalVerdict.INTACT, ())
    code, said = _play(copy)
    assert (code, said[-1].endswith("all as they were")) == (0, True)


@pytest.mark.parametrize("hurt", [Path.unlink, _empty, _zeros, _half])
def test_a_lost_end_is_known_from_the_recording(copy: Path, hurt: Callable[[Path], None]) -> None:
    """The newest facts are gone and nothing is torn: the inputs beside them tell of them."""
    newest = verify.verify(copy).newest
    hurt(copy / LAST)
    report = verify.verify(copy)
    assert report.verdict is JournalVerdict.LOST
    assert report.newest < newest
    (note,) = [note for note in report.notes if "tells of record" in note]
    assert f"records {report.newest + 1} to" in note
    code, said = _play(copy)
    assert code == 0, said
    assert "that the journal does not hold" in said[-1]


@pytest.mark.parametrize("hurt", [_empty, _zeros])
def test_a_file_without_the_head_that_it_was_named_with_has_lost_facts(
    copy: Path, hurt: Callable[[Path], None]
) -> None:
    """No kill leaves a later part without its head: also without a recording it is no torn end."""
    for path in copy.glob("inputs-*"):
        path.unlink()
    hurt(copy / LAST)
    report = verify.verify(copy)
    assert report.verdict is JournalVerdict.LOST
    found = show.everything(copy)
    assert found.facts[-1].sequence == report.newest
    assert any(LAST in note for note in found.notes)


def test_old_facts_that_were_removed_before_a_base_are_no_gap(copy: Path) -> None:
    """As retention leaves a journal: the oldest that is left is a base."""
    first = segment_path(copy, 1)
    last = read_segment(first).records[-1].sequence
    first.unlink()
    report = verify.verify(copy)
    assert (report.verdict, report.base, report.notes) == (JournalVerdict.INTACT, last, ())


def test_a_gap_before_the_base_is_said(copy: Path) -> None:
    """A master needs none of it; people who look at an incident do."""
    first = segment_path(copy, 1)
    first.write_bytes(first.read_bytes()[: _border(first, 5)])
    report = verify.verify(copy)
    assert report.verdict is JournalVerdict.HURT
    assert report.notes == (f"records 6 to {report.base} are missing before the base",)


def test_another_job_s_file_is_named_and_not_shown(copy: Path) -> None:
    """A base covers for it, so a master would not look; a person must not be told its facts."""
    path = segment_path(copy, 1)
    path.unlink()
    opened = dataclasses.replace(head(), job_uid="another")
    written(copy / "other", [JournalRecord(sequence=1, fact=opened)]).close()
    segment_path(copy / "other", 1).rename(path)
    report = verify.verify(copy)
    assert report.verdict is JournalVerdict.HURT
    assert "is of job 'another'" in report.findings[0].damage
    base = report.base
    assert [record for record in show.everything(copy).facts if record.sequence <= base] == []


def test_a_recording_that_was_killed_before_its_first_write_is_no_damage(copy: Path) -> None:
    """It is empty, and the other recordings are decided again."""
    last = max(copy.glob("inputs-*"))
    _empty(copy / f"inputs-{int(last.stem.removeprefix('inputs-')) + 1}.rec")
    assert verify.verify(copy).verdict is JournalVerdict.INTACT
    code, said = _play(copy)
    assert code == 0
    assert any("is empty" in line for line in said)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("nothing")],
    ids=["pipe", "directory", "dangling link"],
)
@pytest.mark.parametrize("name", ["journal-2.log", "inputs-2.rec"])
def test_what_is_no_file_is_said_and_the_rest_is_read(
    copy: Path, make: Callable[[Path], None], name: str
) -> None:
    """A pipe would be waited for, for ever; a link to nothing is no file that was removed."""
    newest = verify.verify(copy).newest
    (copy / name).unlink(missing_ok=True)
    make(copy / name)
    report = verify.verify(copy)
    assert report.newest == newest
    assert report.verdict is not JournalVerdict.INTACT
    (damage,) = [finding.damage for finding in report.findings if finding.file == name]
    assert "cannot be read: it is" in damage
    code, said = _play(copy)
    assert said[-1].endswith("all as they were")
    assert code == (2 if name.startswith("inputs") else 0)
