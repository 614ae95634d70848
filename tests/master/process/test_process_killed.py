"""A master that is killed at random instants, again and again, and restarted from its journal."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import grpc
import pytest

from agents.scripted_agent import ScriptedAgent
from holdfast_master.replay.inspect import verify
from holdfast_master.replay.inspect.replay import Player, Span
from holdfast_wire import errors
from holdfast_wire import messages as wire
from house.extended import usual
from masters.master_process import MasterProcess, master_process
from masters.worlds import GENEROUS, events, phase

KILLS = int(os.environ.get("HOLDFAST_TEST_KILLS", "12"))


class Killed:
    """One job whose masters are killed."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.journal = directory / "journal"
        self.luck = random.Random(seed)
        self.agents: list[ScriptedAgent] = []
        self.port = 0
        self.asked = 0
        self.granted = 0
        self.seen: list[wire.JobEvent] = []

    def settings(self, epoch: int) -> dict[str, object]:
        """Return a configuration under which a base is written every few rounds."""
        return {
            "epoch": epoch,
            "port": self.port,
            "initial_spec": GENEROUS,
            "journal_dir": str(self.journal),
            "journal_segment_bytes": 4096,
            "recording_bytes": 10_000_000,
        }

    def live(self, epoch: int) -> None:
        """Start a master, see that it knows everything, have it work, kill it."""
        with master_process(self.directory, **self.settings(epoch)) as master:
            self.port = master.port
            if not self.agents:
                self.agents = [ScriptedAgent(self.directory, master.port, n) for n in (0, 1)]
            self._settle(master)
            for _ in range(self.luck.randrange(1, 6)):
                self._restart(master)
                if self.luck.random() < 0.7:
                    self._settle(master)
            self.seen = events(master)
            # Before the kill: nothing, a command that is under way, or a crash.
            chance = self.luck.random()
            if chance < 0.4:
                self._restart(master)
            elif chance < 0.6:
                self.asked += 1
                self.agents[1].send(wire.WorkerExited(rank=1, exit_code=1))
            time.sleep(self.luck.uniform(0.0, 0.05))
            master.stop(signal.SIGKILL)

    def _restart(self, master: MasterProcess) -> None:
        self.asked += 1
        try:
            master.ask("RestartWorker", wire.RestartWorkerRequest(reason=f"number {self.asked}"))
        except grpc.RpcError as error:
            # No round runs yet that could be restarted.
            if errors.read(error).code is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
        else:
            self.granted += 1

    def _settle(self, master: MasterProcess) -> None:
        master.wait_for(lambda: phase(master) is wire.JobPhase.TRAINING)
        assert events(master)[: len(self.seen)] == self.seen, "an event that was seen is gone"


MORE = pytest.mark.extended(
    "other instants of the same kills",
    held_by=[
        "master/process/test_process_killed.py::test_a_master_that_is_killed_at_any_instant_forgets_nothing"
    ],
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", usual([1, 2], 1, more=MORE))
def test_a_master_that_is_killed_at_any_instant_forgets_nothing(tmp_path: Path, seed: int) -> None:
    """No event that was shown is lost, no round begins that nobody asked for, all are replayed."""
    job = Killed(tmp_path, seed)
    try:
        for epoch in range(1, KILLS + 1):
            job.live(epoch)
        with master_process(tmp_path, **job.settings(KILLS + 1)) as master:
            job._settle(master)
            found = events(master)
            rounds = sum(event.reason == "WorldTraining" for event in found)
            assert rounds <= job.asked + 1, f"seed {seed}: {rounds} rounds, {job.asked} asked for"
            restarts = [event for event in found if event.reason == "RestartRequested"]
            assert len(restarts) >= job.granted, f"seed {seed}: a command that was granted is gone"
            damage = [event.text for event in found if event.reason == "JournalDamaged"]
            assert [text for text in damage if "unfinished record" not in text] == []
            assert master.stop() == 0
    finally:
        for agent in job.agents:
            agent.close()
    assert verify.verify(job.journal).verdict is not verify.JournalVerdict.LOST
    said: list[str] = []
    code = Player(job.journal, Span(), said.append).play(lambda: None)
    assert code == 0, f"seed {seed}\n" + "\n".join(said[-30:])
