"""The recording of inputs on disk: bounded, torn, refused, slow, and good for a replay."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from holdfast_master.inputs import Moment, Received
from holdfast_master.journal import filesystem, framing
from holdfast_master.journal.segments import JournalError
from holdfast_master.replay import recorder, replayer
from holdfast_master.replay.codec import from_message
from holdfast_master.replay.files import read_recording, recording_path, recording_paths
from holdfast_master.replay.recorder import InputRecorder, encode
from holdfast_master.replay.replayer import ReplayedInput, redecide
from holdfast_wire import codec
from holdfast_wire import messages as wire
from masters.journals import RECORDING, RecordedJob, differences


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests say when the recorder writes."""
    monkeypatch.setattr(recorder, "FLUSH_SECONDS", 3600.0)


class Recorded:
    """A core in a job whose inputs a recorder writes."""

    def __init__(self, directory: Path, limit: int = 10_000_000) -> None:
        directory.mkdir()
        self.recorder = InputRecorder(directory, RECORDING, limit)
        self.job = RecordedJob(self.recorder, replicas=4, seed=1)

    def write(self, directory: Path) -> Path:
        """Run the job, write what it did block by block, and return the file."""
        self.job.add_agents(4)
        for _ in range(10):
            self.job.run(5.0)
            self.recorder._write_waiting()
        self.recorder.close()
        (path,) = recording_paths(directory)
        return path

    def replay(self, directory: Path) -> list[ReplayedInput]:
        """Decide the recording again."""
        (path,) = recording_paths(directory)
        recording = read_recording(path)
        assert recording is not None
        opened = recording.opened
        before, facts = replayer.split(self.job.records, opened.sequence, opened.epoch)
        return list(redecide(opened, recording.inputs(), before, facts))


def test_a_recording_ends_at_its_bound_and_can_be_decided_again(tmp_path: Path) -> None:
    """It begins with the master; what is over the bound is left out, and that is logged."""
    directory = tmp_path / "journal"
    recorded = Recorded(directory, limit=20_000)
    recorded.job.add_agents(4)
    for number in range(60):
        recorded.job.run(20.0)
        if number % 6 == 3:
            recorded.job.agents[1].crash()
        recorded.recorder._write_waiting()
    recorded.recorder.close()
    assert "recording_bytes is 20000, which is used up" in recorded.recorder.trouble
    path = recording_path(directory, 1)
    assert 15_000 < path.stat().st_size <= 20_000
    steps = recorded.replay(directory)
    assert len(steps) > 1
    assert differences(steps) == []


def test_the_oldest_recordings_go_when_a_successor_begins(tmp_path: Path) -> None:
    """Half of the bound is free for each new master; all of them together keep to the bound."""
    for epoch in range(1, 9):
        recorder = InputRecorder(tmp_path, dataclasses.replace(RECORDING, epoch=epoch), 40_000)
        recorder.begin(Moment(1.0, 2.0), 0)
        fence, beat = wire.Fence(epoch=1, round=1), wire.Heartbeat(sequence=3)
        for at in range(300):
            recorder.note((Received(at, fence, beat), Moment(at * 1.1, at / 7), at, 0, False))
        recorder._write_waiting()
        recorder.close()
        assert recorder.trouble == ""
    paths = recording_paths(tmp_path)
    assert recording_path(tmp_path, 8) in paths
    assert recording_path(tmp_path, 1) not in paths
    assert len(paths) > 1
    assert sum(path.stat().st_size for path in paths) <= 40_000


def _flipped(data: bytes, bit: int) -> bytes:
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


@pytest.mark.parametrize("tears", [True, False], ids=["torn", "flipped bit"])
def test_a_damaged_recording_is_decided_as_far_as_it_goes(tmp_path: Path, *, tears: bool) -> None:
    """A master that was killed leaves half a block; a flipped bit ends what can be read."""
    directory = tmp_path / "journal"
    recorded = Recorded(directory)
    path = recorded.write(directory)
    whole = len(recorded.replay(directory))
    data = path.read_bytes()
    torn = {f"cut at {cut}": data[:cut] for cut in range(len(data) - 400, len(data), 37)}
    bits = random.Random(0).sample(range(len(data) * 8), 40)
    flipped = {f"bit {bit}": _flipped(data, bit) for bit in bits}
    for where, damaged in (torn if tears else flipped).items():
        path.write_bytes(damaged)
        recording = read_recording(path)
        if recording is None:
            assert not tears, where
            continue
        assert recording.broken, where
        steps = recorded.replay(directory)
        assert differences(steps) == [], where
        assert (0 if tears else -1) < len(steps) < whole, where


def test_a_disk_that_refuses_ends_the_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decisions go on; why nothing is recorded can be asked."""

    def refuse(_file: int, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    recorded = Recorded(tmp_path / "journal")
    monkeypatch.setattr(filesystem, "write", refuse)
    recorded.job.add_agents(4)
    recorded.job.run(5.0)
    recorded.recorder._write_waiting()
    recorded.job.run_until("TRAINING")
    recorded.recorder.close()
    assert "No space left on device" in recorded.recorder.trouble
    assert len(recorded.recorder._queue) == 0


def test_a_disk_that_does_not_keep_up_ends_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded; with a hole in it nothing behind could be decided again."""
    monkeypatch.setattr(recorder, "QUEUE_LIMIT", 20)
    directory = tmp_path / "journal"
    recorded = Recorded(directory)
    recorded.recorder._write_waiting()
    recorded.job.add_agents(4)
    recorded.job.run(60.0)
    recorded.recorder._write_waiting()
    assert "more than 20 inputs wait" in recorded.recorder.trouble
    recorded.job.run(0.5)
    recorded.recorder.close()
    assert len(recorded.recorder._queue) == 0
    steps = recorded.replay(directory)
    assert differences(steps) == []
    assert steps


def test_the_short_way_to_encode_a_message_gives_the_same() -> None:
    """An agent's recorded message decodes to the same with and without its raw bytes."""
    beat = wire.Heartbeat(sequence=3, ranks=(wire.RankProgress(round=1, step=2),))
    raw = codec.encode(wire.SessionRequest(fence=wire.Fence(epoch=1, round=1), message=beat))
    now = Moment(1.5, 2.5)
    events = [Received(7, wire.Fence(epoch=1, round=1), beat, data) for data in (raw, b"")]
    both = [codec.decode(wire.InputRecorded, encode((event, now, 9, 2, False))) for event in events]
    assert both[0] == both[1]
    assert from_message(both[0]) == Received(7, wire.Fence(epoch=1, round=1), beat)
    assert (both[0].mono, both[0].unix_time) == (1.5, 2.5)
    assert (both[0].sequence, both[0].instructions) == (9, 2)


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_recording_of_another_format_is_refused_with_the_remedy(
    number: int, tmp_path: Path
) -> None:
    """A reader does not guess, neither of what is newer nor of what is older."""
    path = recording_path(tmp_path, 1)
    other = dataclasses.replace(RECORDING, format=number, version="9.0")
    path.write_bytes(framing.frame(codec.encode(other)))
    with pytest.raises(JournalError, match=rf"has format {number}, written by holdfast 9\.0"):
        read_recording(path)
