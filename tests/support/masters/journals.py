"""Journals of a simulated job: written, compacted, and stopped between two steps."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from holdfast_master.core import Core
from holdfast_master.instructions import JOURNAL_FORMAT
from holdfast_master.job.state.apply import apply
from holdfast_master.job.state.job_state import JobState
from holdfast_master.journal import filesystem
from holdfast_master.journal.compaction import Retention, compact
from holdfast_master.journal.reader import History, read_history
from holdfast_master.journal.writer import Journal
from holdfast_master.replay.files import FORMAT
from holdfast_master.replay.recorder import InputRecorder, RecordedCore
from holdfast_master.replay.replayer import ReplayedInput
from holdfast_master.settings import CoreSettings
from holdfast_wire import codec
from holdfast_wire.messages import JournalRecord, PastMaster, RecordingOpened, SegmentOpened
from house.repository import ROOT
from simulation.steered.job import JOB_UID, SteeredJob, job_spec

KEEP_ALL = Retention(seconds=1e9, limit_bytes=1 << 40)
KEEP_NOTHING = Retention(seconds=0.0, limit_bytes=0)
NOW = 1_800_000_000.0
STEPS = ("create", "write", "sync", "rename", "remove", "sync_directory")
RECORDING = RecordingOpened(
    format=FORMAT, epoch=1, incarnation="m1", job_name="job", job_uid=JOB_UID, version="0.1.0"
)
EVERY_MASTER = (PastMaster(epoch=1, incarnation="m1", newest_event=3),)


@functools.cache
def troubled_story() -> list[JournalRecord]:
    """The records of a job with failures, a rescale and a drained node."""
    job = SteeredJob(job_spec(replicas=4), seed=5)
    agents = job.add_agents(4)
    job.run_until("TRAINING")
    agents[1].crash()
    job.run(30)
    job.operator.change(replicas=3)
    job.run(60)
    job.evict(0)
    job.run(90)
    return job.records


def head(epoch: int = 1) -> SegmentOpened:
    """Return what files of the simulated master begin with."""
    return SegmentOpened(
        format=JOURNAL_FORMAT, epoch=epoch, incarnation=f"m{epoch}", job_uid=JOB_UID
    )


def fold(records: Iterable[JournalRecord]) -> JobState:
    """Return the state that records come to."""
    settings = CoreSettings()
    state = JobState(event_limit=settings.event_limit, incident_limit=settings.incident_limit)
    for record in records:
        apply(state, record)
    return state


def write(journal: Journal, records: list[JournalRecord]) -> None:
    """Write records as the loop does."""
    journal.commit([codec.encode(record) for record in records], durable=True)


def written(directory: Path, records: list[JournalRecord]) -> Journal:
    """Return the journal of the master of epoch 1 with these records."""
    journal = Journal(directory, 1, "m1")
    write(journal, records)
    return journal


def compacted(directory: Path, state: JobState, retention: Retention = KEEP_NOTHING) -> None:
    """Compact as the master of epoch 1 does."""
    compact(directory, head(), state, EVERY_MASTER, retention, NOW)


def read(directory: Path) -> History:
    """Read as a successor does."""
    return read_history(directory, JOB_UID)


def files(directory: Path) -> list[str]:
    """Return the names in the directory."""
    return sorted(path.name for path in directory.iterdir())


class _Watched(RecordedCore):
    """A recorded core at which a simulated job looks also where the loop would not."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


class RecordedJob(SteeredJob):
    """A job whose master is recorded."""

    def __init__(self, recorder: InputRecorder, replicas: int, seed: int) -> None:
        self.recorder = recorder
        super().__init__(job_spec(replicas=replicas), seed=seed)

    def wrap(self, core: Core) -> Core:
        """Record what the core is told."""
        return _Watched(core, self.recorder)  # type: ignore[return-value]


def differences(steps: Iterable[ReplayedInput]) -> list[str]:
    """Return where today's code decides otherwise."""
    return [step.difference for step in steps if step.difference]


def on_own_disk(tmp_path: Path, script: str) -> list[str]:
    """Run a script that mounts a disk of its own at its first argument; return what it printed."""
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["unshare", "-Urm", sys.executable, "-c", script, str(mount)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")},
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no private mounts here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


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
            self.monkeypatch.setattr(filesystem, name, self._wrap(name))

    def _wrap(self, name: str) -> Callable[..., object]:
        real = getattr(filesystem, name)

        def step(*arguments: object) -> object:
            if len(self.taken) == self.fatal:
                if name == "write":
                    # Half of it is on disk, as after a kill in the middle of a write.
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])  # type: ignore[index, arg-type]
                raise self.error
            self.taken.append(name)
            return real(*arguments)

        return step
