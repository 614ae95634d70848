"""The master is frozen, killed or replaced: training goes on and nothing is lost."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.control_plane import free_port
from holdfast_wire import codec
from holdfast_wire import messages as wire
from holdfast_wire.identity import Identity
from masters.master_process import MasterProcess, master_process
from masters.worlds import events, phase, world

pytestmark = pytest.mark.slow  # masters are killed and stand still for seconds

LONG_SECONDS = 70.0
"""gRPC gives connections up after 60 s."""
SHORT: dict[str, Any] = {"core": {"silence_seconds": 6.0}}
"""Longer than a busy machine stands still."""


@pytest.mark.parametrize(
    ("settings", "seconds"), [(SHORT, 12.0), ({}, LONG_SECONDS)], ids=["short", "long"]
)
def test_a_freeze_of_the_master_expires_nobody(
    tmp_path: Path, settings: dict[str, Any], seconds: float
) -> None:
    """Twice the silence limit, or until gRPC gives up: no restart, one event that says so."""
    with world(tmp_path, **settings) as (master, agents):
        master.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)  # the length of the freeze is what is tested
        master.process.send_signal(signal.SIGCONT)
        master.wait_for(lambda: "MasterStalled" in [event.reason for event in events(master)])
        end = time.monotonic() + 7.0
        while time.monotonic() < end:
            assert [len(agent.assignments) for agent in agents] == [1, 1]
            time.sleep(0.1)
        assert phase(master) is wire.JobPhase.TRAINING
        assert not {"NodeLost", "IncidentOpened"} & {event.reason for event in events(master)}


def test_a_killed_master_comes_back_and_nobody_restarts(tmp_path: Path) -> None:
    """SIGKILL, a new epoch at the same address: the agents re-attach, the world is adopted."""
    port = free_port()
    with world(tmp_path, port=port) as (master, agents):
        master.end()
        again = {"epoch": 2, "port": port, "journal_dir": str(tmp_path / "journal")}
        with master_process(tmp_path, **again) as successor:
            for agent in agents:
                agent.wait_for(lambda agent=agent: agent.connections == 2)
                assert agent.fence.epoch == 2
            successor.wait_for(lambda: phase(successor) is wire.JobPhase.TRAINING)
            # Longer than a new master waits for members: 5 s.
            end = time.monotonic() + 6.0
            while time.monotonic() < end:
                counts = [len(agent.assignments) for agent in agents]
                assert counts == [1, 1], [event.text for event in events(successor)]
                time.sleep(0.1)
            agents[0].send(wire.WorkerExited(rank=0, exit_code=1))
            for agent in agents:
                agent.wait_for(lambda agent=agent: len(agent.assignments) == 2)
                assert agent.round > 1


def test_a_watcher_continues_at_the_next_master_without_a_gap(tmp_path: Path) -> None:
    """Its token of the killed master is good at the one that read the journal."""
    port = free_port()
    with world(tmp_path, port=port) as (master, _agents):
        token, seen = watch(master, "", until="WorldTraining")
        master.end()
        again = {"epoch": 2, "port": port, "journal_dir": str(tmp_path / "journal")}
        with master_process(tmp_path, **again) as successor:
            _, rest = watch(successor, token, until="MasterRestored")
    sequences = [event.sequence for event in (*seen, *rest)]
    assert sequences == list(range(sequences[0], sequences[-1] + 1))
    assert sequences[0] == 1


def watch(master: MasterProcess, token: str, until: str) -> tuple[str, list[wire.JobEvent]]:
    """Read events up to one with this reason; return the token after it, and the events."""
    seen: list[wire.JobEvent] = []
    with master.channel(Identity("j1", "user")) as made:
        stub: Any = made.unary_stream("/holdfast.v1.JobService/WatchJob")
        for data in stub(codec.encode(wire.WatchJobRequest(resume_token=token)), timeout=20):
            response = codec.decode(wire.WatchJobResponse, data)
            message = response.message
            if isinstance(message, wire.JobEvent):
                seen.append(message)
            elif isinstance(message, wire.JobSnapshot):
                seen.extend(message.events)
            if seen and seen[-1].reason == until:
                return response.resume_token, seen
    raise AssertionError(f"no {until}; got {[event.reason for event in seen]}")
