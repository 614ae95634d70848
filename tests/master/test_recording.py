"""The recording of inputs on disk: bounded, torn, refused, slow, and good for a replay."""

from __future__ import annotations

import dataclasses
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from holdfast_master import durable_files, framing, recording, redeciding
from holdfast_master.inputs import Moment, Received
from holdfast_master.recorded_inputs import from_message
from holdfast_master.recording import InputRecorder, RecordedCore, encode
from holdfast_master.recording_files import read_recording, recording_path, recording_paths
from holdfast_master.redeciding import Step, redecide
from holdfast_master.segments import JournalError
from holdfast_wire import codec
from holdfast_wire.messages import (
    Fence,
    Heartbeat,
    InputRecorded,
    RankProgress,
    RecordingOpened,
    SessionRequest,
)
from simulated_job import SimulatedJob, job_spec
from simulated_process import JOB_UID

HEAD = RecordingOpened(
    format=1, epoch=1, incarnation="m1", job_name="job", job_uid=JOB_UID, version="0.1.0"
)


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests say when the recorder writes."""
    monkeypatch.setattr(recording, "FLUSH_SECONDS", 3600.0)


class Watched(RecordedCore):
    """A recorded core at which a simulated job looks also where the loop would not."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


class Recorded:
    """A core in a job whose inputs a recorder writes."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.job = SimulatedJob(job_spec(replicas=4), seed=1)
        directory.mkdir()
        self.recorder = InputRecorder(directory, HEAD, limit)
        core = self.job.core
        # The job's core has been opened already: this is no part 0.
        self.recorder._part = 0
        self.recorder.begin(self.job.moment(), core.newest_record(), core.papers(1000))
        self.job.core = Watched(core, self.recorder)  # type: ignore[assignment]

    def replay(self, directory: Path) -> list[list[Step]]:
        """Decide every file again."""
        played = []
        for path in recording_paths(directory):
            recording = read_recording(path)
            assert recording is not None
            sequence = recording.opened.sequence
            before, facts = redeciding.split(self.job.records, sequence)
            opened = recording.opened
            played.append(list(redecide(opened, recording.inputs(), before, facts)))
        return played


def test_files_are_bounded_and_each_can_be_decided_again(tmp_path: Path) -> None:
    """A long job's recording keeps to its bound; each file begins with what it needs."""
    directory = tmp_path / "journal"
    recorded = Recorded(directory, limit=200_000)
    recorded.job.add_agents(4)
    for number in range(60):
        recorded.job.run(20.0)
        if number % 6 == 3:
            recorded.job.agents[1].crash()
        recorded.recorder._write_waiting()
    recorded.recorder.close()
    assert recorded.recorder.trouble == ""
    paths = recording_paths(directory)
    assert len(paths) > 3
    assert paths[0] != recording_path(directory, 1, 1), "the oldest have gone"
    assert sum(path.stat().st_size for path in paths) <= 200_000
    for steps in recorded.replay(directory):
        assert [step.difference for step in steps if step.difference] == []
        assert steps


def test_a_torn_recording_is_decided_as_far_as_it_goes(tmp_path: Path) -> None:
    """A master that was killed leaves half a block; a flipped bit ends what can be read."""
    directory = tmp_path / "journal"
    recorded = Recorded(directory, limit=10_000_000)
    recorded.job.add_agents(4)
    for _ in range(10):
        recorded.job.run(5.0)
        recorded.recorder._write_waiting()
    recorded.recorder.close()
    (path,) = recording_paths(directory)
    whole = len(recorded.replay(directory)[0])
    data = path.read_bytes()
    for cut in range(len(data) - 400, len(data), 37):
        path.write_bytes(data[:cut])
        recording = read_recording(path)
        assert recording is not None
        assert recording.broken
        (steps,) = recorded.replay(directory)
        assert [step.difference for step in steps if step.difference] == []
        assert 0 < len(steps) < whole


def test_a_disk_that_refuses_ends_the_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decisions go on; why nothing is recorded can be asked."""

    def refuse(_file: int, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    recorded = Recorded(tmp_path / "journal", limit=10_000_000)
    monkeypatch.setattr(durable_files, "write", refuse)
    recorded.job.add_agents(4)
    recorded.job.run(5.0)
    recorded.recorder._write_waiting()
    recorded.job.run_until("TRAINING")
    recorded.recorder.close()
    assert "No space left on device" in recorded.recorder.trouble
    assert len(recorded.recorder._queue) == 0


def test_papers_that_cannot_be_copied_end_the_recording_and_no_decision(tmp_path: Path) -> None:
    """Whatever is wrong with a recording, no input is lost to the core."""
    recorded = Recorded(tmp_path / "journal", limit=10_000_000)
    core = recorded.job.core
    core._desk.rescale_cost = Fraction(1)  # type: ignore[assignment]
    recorded.recorder.wants_part = True
    recorded.job.add_agents(4)
    recorded.job.run(1.0)
    recorded.recorder.close()
    assert "Fraction is not among the classes" in recorded.recorder.trouble
    assert len(core._desk.roster.nodes) == 4


def test_a_disk_that_does_not_keep_up_leaves_a_hole_between_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded; what follows the hole begins with the core's papers."""
    monkeypatch.setattr(recording, "QUEUE_LIMIT", 20)
    directory = tmp_path / "journal"
    recorded = Recorded(directory, limit=10_000_000)
    recorded.recorder._write_waiting()
    recorded.job.add_agents(4)
    recorded.job.run(60.0)
    recorded.recorder._write_waiting()
    assert recorded.recorder.wants_part
    recorded.job.run(0.5)
    recorded.recorder._write_waiting()
    recorded.recorder.close()
    played = recorded.replay(directory)
    assert len(played) == 2
    assert played[0] == []
    assert [step.difference for step in played[1] if step.difference] == []
    assert played[1]


def test_the_short_way_to_encode_a_message_gives_the_same() -> None:
    """What an agent said is read back as through the twins, with and without its raw bytes."""
    beat = Heartbeat(sequence=3, ranks=(RankProgress(round=1, step=2),))
    raw = codec.encode(SessionRequest(fence=Fence(epoch=1, round=1), message=beat))
    now = Moment(1.5, 2.5)
    events = [Received(7, Fence(epoch=1, round=1), beat, data) for data in (raw, b"")]
    both = [codec.decode(InputRecorded, encode((event, now, 9, 2, False))) for event in events]
    assert both[0] == both[1]
    assert from_message(both[0]) == Received(7, Fence(epoch=1, round=1), beat)
    assert (both[0].mono, both[0].unix_time) == (1.5, 2.5)
    assert (both[0].sequence, both[0].instructions) == (9, 2)


def test_a_recording_of_a_newer_release_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """An older reader does not guess."""
    path = recording_path(tmp_path, 1, 0)
    newer = dataclasses.replace(HEAD, format=2, version="9.0")
    path.write_bytes(framing.frame(codec.encode(newer)))
    with pytest.raises(JournalError, match=r"has format 2, written by holdfast 9\.0"):
        read_recording(path)


def test_any_flipped_bit_of_a_recording_is_found(tmp_path: Path) -> None:
    """What is before it is decided alike; what is behind it is left out, and that is said."""
    directory = tmp_path / "journal"
    recorded = Recorded(directory, limit=10_000_000)
    recorded.job.add_agents(4)
    for _ in range(5):
        recorded.job.run(5.0)
        recorded.recorder._write_waiting()
    recorded.recorder.close()
    (path,) = recording_paths(directory)
    data = path.read_bytes()
    whole = len(recorded.replay(directory)[0])
    for bit in random.Random(0).sample(range(len(data) * 8), 40):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(damaged))
        recording = read_recording(path)
        assert recording is None or recording.broken, f"bit {bit}"
        if recording is not None:
            (steps,) = recorded.replay(directory)
            assert len(steps) < whole, f"bit {bit}"
            assert [step.difference for step in steps if step.difference] == [], f"bit {bit}"
