"""The master's journal as its process keeps it: whose epoch it is, and disks that refuse."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import pytest

from agents.scripted_agent import ScriptedAgent
from holdfast_master.journal.segments import read_segments
from holdfast_wire.messages import WorkerExited
from masters.master_process import SPEC, MasterProcess, master_process, refused
from masters.worlds import events, world

pytestmark = pytest.mark.slow  # each starts masters, which takes a core half a second


def test_an_epoch_is_one_masters_only(tmp_path: Path) -> None:
    """Another process with the same epoch, and one with an older epoch, exit with 3."""
    journal = str(tmp_path / "journal")
    with master_process(tmp_path, epoch=5, journal_dir=journal) as master:
        second = tmp_path / "second"
        second.mkdir()
        code, text = refused(second, epoch=5, journal_dir=journal)
        assert (code, "give each master process its own epoch" in text) == (3, True)
        assert master.stop() == 0
    code, text = refused(tmp_path, epoch=5, journal_dir=journal, incarnation="other")
    assert (code, "give each master process its own epoch" in text) == (3, True)
    code, text = refused(tmp_path, epoch=4, journal_dir=journal)
    assert (code, "has a segment of epoch 5" in text) == (3, True)


def test_a_disk_that_fills_up_does_not_stop_the_training(tmp_path: Path) -> None:
    """The master says so and goes on: a crash is still recovered from; room mends the journal."""
    journal = tmp_path / "journal"
    with world(tmp_path) as (master, agents):
        size = (journal / "journal-1.log").stat().st_size
        pid = master.process.pid
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 10, hard))
        agents[1].send(WorkerExited(rank=1, exit_code=1, error_type="ValueError"))
        agents[0].wait_for(lambda: len(agents[0].assignments) == 2)
        master.wait_for(lambda: "JournalTroubled" in reasons(master))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        master.wait_for(lambda: "JournalMended" in reasons(master))
        assert master.stop() == 0
    (segment,) = read_segments(journal)
    assert segment.broken == ""
    numbers = [record.sequence for record in segment.records]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_journal_that_cannot_be_written_at_all_does_not_stop_the_job(tmp_path: Path) -> None:
    """Said in log and events; agents are served."""
    with master_process(tmp_path, initial_spec=SPEC, journal_dir="/proc/holdfast") as master:
        master.wait_for(lambda: "JournalTroubled" in reasons(master))
        assert master.lines("going on without it, trying again")
        with contextlib.closing(ScriptedAgent(tmp_path, master.port, 0)) as agent:
            agent.wait_for(lambda: agent.connections)
        assert master.stop() == 0
        (line,) = master.lines("exiting: stopped")
        assert line["core_errors"] == 0
        assert line["records"] > 0


def reasons(master: MasterProcess) -> list[str]:
    """Return the reasons of all events so far."""
    return [event.reason for event in events(master)]
