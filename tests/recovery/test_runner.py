"""The local runner itself: interrupted, killed, detached; what it leaves behind is nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from holdfast_cli.runner.processes import descendants
from local_job import StartJob, alive
from loop_script import loop_script

pytestmark = pytest.mark.train


def _shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}  # noqa: S108 - it is what is tested


@pytest.mark.parametrize(("number", "model"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_an_interrupt_leaves_no_process_and_no_shared_memory(
    start_job: StartJob, tmp_path: Path, number: signal.Signals, *, model: bool
) -> None:
    """Ctrl-C: exit code 130, every process of the job gone, nothing left in /dev/shm."""
    before = _shared_memory()
    script = None if model else loop_script(tmp_path, "--steps=100000")
    job = start_job(steps=5000, script=script)
    job.wait_step(5)
    tree = descendants(job.process.pid)
    assert len(tree) >= 6
    os.kill(job.process.pid, number)
    assert job.finish(60) == 130, job.evidence()
    assert [pid for pid in tree if alive(pid)] == []
    assert _shared_memory() - before == set()


def test_killing_the_runner_ends_the_whole_job(start_job: StartJob, tmp_path: Path) -> None:
    """Kill -9 of `holdfast run`: master, agents, zygotes and ranks end as well."""
    job = start_job(script=loop_script(tmp_path, "--steps=100000"))
    job.wait_step(5)
    tree = descendants(job.process.pid)
    job.process.kill()
    job.process.wait()
    deadline = time.monotonic() + 15
    while any(map(alive, tree)):
        assert time.monotonic() < deadline, [pid for pid in tree if alive(pid)]
        time.sleep(0.02)


def test_an_agent_that_cannot_start_says_why_in_the_events(start_job: StartJob) -> None:
    """A module that is not there: the agent's last words reach the events and the view."""
    job = start_job(script=["-m", "no.such.module"])
    event = job.wait_event("PodFailed")
    assert "exit code 2" in event.text
    assert "no.such.module" in event.text
    job.process.send_signal(signal.SIGINT)
    job.process.send_signal(signal.SIGINT)
    job.finish(60)
    assert "no.such.module" in job.output


def test_a_runner_that_can_make_no_master_keeps_the_job_and_tries_again(
    start_job: StartJob, tmp_path: Path
) -> None:
    """As with a full disk: the ranks train on without a master until one can be made."""
    job = start_job(script=loop_script(tmp_path, "--steps=100000"))
    before = job.wait_step(5)
    epoch = job.home.path / "epoch"
    aside = epoch.with_name("epoch.aside")
    rank = job.rank_pid(0)
    epoch.rename(aside)
    epoch.mkdir()
    master = job.home.endpoint()
    assert master is not None
    os.kill(master.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while "tried again" not in job.output:
        assert time.monotonic() < deadline, job.evidence()
        assert job.process.poll() is None, job.evidence()
        time.sleep(0.05)
    assert alive(rank)
    epoch.rmdir()
    aside.rename(epoch)
    after = job.wait_step(before.step + 20, timeout_s=60.0)
    assert (after.epoch, after.round) == (before.epoch + 1, before.round)
    assert job.rank_pid(0) == rank
    assert "Traceback" not in job.output


def test_an_ending_that_cannot_be_kept_is_said_and_changes_nothing(
    start_job: StartJob, tmp_path: Path
) -> None:
    """The job has succeeded, whatever the disk of its directory does."""
    job = start_job(script=loop_script(tmp_path, "--steps=40"))
    job.wait_step(2)
    (job.home.path / "ended.json").mkdir()
    assert job.finish(60) == 0, job.evidence()
    assert "could not be kept" in job.output
    assert "Traceback" not in job.output


def test_who_asks_after_a_killed_runner_is_told_where_to_look(
    start_job: StartJob, tmp_path: Path
) -> None:
    """Nobody kept the job's last word; what its master wrote down is there."""
    job = start_job(script=loop_script(tmp_path, "--steps=100000"))
    job.wait_step(5)
    job.process.kill()
    job.process.wait()
    asked = job.cli("goodput", job.name)
    assert (asked.returncode, f"`holdfast journal show {job.name}`" in asked.stderr) == (4, True)
    shown = job.cli("journal", "show", job.name, "--kind", "WorldTraining")
    assert "round 1 trains" in shown.stdout
