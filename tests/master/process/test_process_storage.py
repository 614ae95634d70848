"""A real master's storage: compacted as it runs, read by its successor, decided again."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agents.scripted_agent import ScriptedAgent
from holdfast_master.journal.segments import SegmentKind, listing
from holdfast_master.replay.files import recording_paths
from holdfast_master.replay.inspect import verify
from holdfast_wire import messages as wire
from house.programs import python
from masters.master_process import MasterProcess, master_process
from masters.worlds import GENEROUS, events, restarted, world

pytestmark = pytest.mark.slow  # each starts masters, which takes a core half a second


def bases(directory: Path) -> list[int]:
    """Return the sequences of the bases in a journal."""
    return [name.number for name in listing(directory) if name.kind is SegmentKind.BASE]


def fill(agent: ScriptedAgent, master: MasterProcess) -> None:
    """Have an agent say much, until the recording is full."""
    chance = random.Random(0)

    def say_more() -> bool:
        for _ in range(20):
            agent.send(wire.Heartbeat(sequence=chance.getrandbits(60)))
        return bool(master.lines("inputs are not recorded any more: recording_bytes is"))

    agent.wait_for(say_more)


def tool(*arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
    """Run one of the tools as the command line does; `said` is what a person types."""
    return python("-m", "holdfast_master.replay.inspect", *arguments, input=said)


def test_a_master_compacts_while_it_runs_and_its_successor_knows_everything(tmp_path: Path) -> None:
    """SIGKILL in the middle of a busy life: status and events are the same afterwards."""
    journal = tmp_path / "journal"
    settings: dict[str, Any] = {
        "initial_spec": GENEROUS,
        "journal_dir": str(journal),
        "journal_segment_bytes": 4096,
        "journal_keep_hours": 0.0,
        "journal_keep_bytes": 0,
    }
    with world(tmp_path, **settings) as (master, agents):
        restarts = itertools.count()
        while len(master.lines("the journal was compacted")) < 3:
            restarted(master, agents[0], f"test {next(restarts)}")
        before = events(master)
        master.stop(signal.SIGKILL)
    assert 1 <= len(bases(journal)) <= 2
    assert not (journal / "journal-1.log").exists()
    report = verify.verify(journal)
    assert report.verdict is not verify.JournalVerdict.LOST
    with master_process(tmp_path, epoch=2, **settings) as successor:
        after = events(successor)
        assert after[: len(before)] == before
        reasons = [event.reason for event in after[len(before) :]]
        assert "MasterRestored" in reasons
        assert "JournalDamaged" not in reasons
        assert successor.stop() == 0


def test_what_a_real_master_decided_is_decided_alike_by_another_process(tmp_path: Path) -> None:
    """Crash, drain, restart and a successor; both recordings, from a process with another seed."""
    journal = tmp_path / "journal"
    settings: dict[str, Any] = {
        "initial_spec": {**GENEROUS, "replicas": 3},
        "journal_dir": str(journal),
    }
    with world(tmp_path, 3, **settings) as (master, agents):
        number = agents[0].round
        agents[1].send(wire.WorkerExited(rank=1, exit_code=1, error_type="ValueError"))
        agents[0].wait_for(lambda: agents[0].round > number)
        master.ask("DrainNode", wire.DrainNodeRequest(node_rank=2, reason="test"))
        agents[2].wait_for(lambda: agents[2].left is not None)
        restarted(master, agents[0])
        agents[0].blip()
        agents[0].wait_for(lambda: len(agents[0].welcomes) > 1)
        assert master.stop() == 0
    with master_process(tmp_path, epoch=2, **settings) as successor:
        events(successor)
        assert successor.stop() == 0
    assert tool("verify", str(journal)).returncode == 0
    done = tool("replay", str(journal))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not decided again" not in done.stdout
    assert "decided again: all as they were" in done.stdout
    assert done.stdout.count("== inputs-") == len(recording_paths(journal)) == 2
    assert "test" in done.stdout


def test_replay_shows_the_facts_behind_a_full_recording_and_says_so(tmp_path: Path) -> None:
    """The job goes on and nothing more is recorded; no fact is passed over in silence."""
    journal = tmp_path / "journal"
    with world(tmp_path, initial_spec=GENEROUS, recording_bytes=20_000) as (master, agents):
        fill(agents[0], master)
        restarted(master, agents[0], "behind the bound")
        assert master.stop() == 0
    assert (journal / "inputs-1.rec").stat().st_size <= 20_000
    done = tool("replay", str(journal))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "behind the bound" in done.stdout
    shown, _, verdict = done.stdout.partition("   no inputs of records ")
    assert "behind the bound" in shown
    assert "are recorded (any more): not decided again" in verdict
    assert "decided again: all as they were" in verdict
    first = int(verdict.split()[0])
    later = tool("replay", str(journal), f"--from={first}")
    assert "== inputs-" not in later.stdout
    assert "nothing was decided again" in later.stdout


def test_the_recording_of_a_killed_master_is_decided_alike(tmp_path: Path) -> None:
    """SIGKILL takes the last half second of it, and nothing else."""
    journal = tmp_path / "journal"
    with world(tmp_path, initial_spec=GENEROUS) as (master, agents):
        for _ in range(2):
            restarted(master, agents[0])
        inputs = journal / "inputs-1.rec"
        agents[0].wait_for(inputs.exists)
        for _ in range(2):  # the write that goes on now may have begun before the request
            size = inputs.stat().st_size
            agents[0].wait_for(lambda size=size: inputs.stat().st_size > size)
        master.stop(signal.SIGKILL)
    done = tool("replay", str(journal))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "asks RestartWorkerRequest" in done.stdout


def test_an_incident_is_stepped_through_by_its_id(tmp_path: Path) -> None:
    """Its facts with their reasons, and what the master was told around them."""
    journal = tmp_path / "journal"
    settings: dict[str, Any] = {"initial_spec": GENEROUS, "core": {"evidence_seconds": 0.5}}
    with world(tmp_path, **settings) as (master, agents):
        number = agents[0].round
        agents[1].send(
            wire.WorkerExited(rank=1, exit_code=3, error_type="E", error_message="bad batch")
        )
        agents[0].wait_for(lambda: agents[0].round > number)
        master.wait_for(lambda: [e for e in events(master) if e.reason == "IncidentClosed"])
        assert master.stop() == 0
    shown = tool("show", str(journal), "--kind=Incident", "--json")
    facts = [json.loads(line) for line in shown.stdout.splitlines()]
    assert facts[0]["fact"]["open"]
    assert not facts[-1]["fact"]["open"]
    name = facts[0]["fact"]["id"]
    done = tool("replay", str(journal), f"--incident={name}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bad batch" in done.stdout
    assert "WorldDecided" in done.stdout
    assert "-> WorldAssignment to stream 1, 2" in done.stdout
    stepped = tool("replay", str(journal), f"--incident={name}", "--step", said="\n" * 500)
    assert stepped.returncode == 0, stepped.stderr
    assert stepped.stdout.count("-- Enter: next") == done.stdout.count("  > ")
    unknown = tool("replay", str(journal), "--incident=no")
    assert (unknown.returncode, f"known: {name}" in unknown.stderr) == (2, True)
