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
