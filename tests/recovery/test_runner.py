"""The local runner itself: interrupted, killed, detached; what it leaves behind is nothing."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from holdfast_cli.runner.processes import descendants
from local_job import StartJob, alive

pytestmark = pytest.mark.train


def _shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}  # noqa: S108 - it is what is tested


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_and_no_shared_memory(
    start_job: StartJob, number: signal.Signals
) -> None:
    """Ctrl-C: exit code 130, every process of the job gone, nothing left in /dev/shm."""
    before = _shared_memory()
    job = start_job(steps=5000)
    job.wait_step(5)
    tree = descendants(job.process.pid)
    assert len(tree) >= 6
    os.kill(job.process.pid, number)
    assert job.finish(60) == 130, job.evidence()
    assert [pid for pid in tree if alive(pid)] == []
    assert _shared_memory() - before == set()


def test_killing_the_runner_ends_the_whole_job(start_job: StartJob) -> None:
    """Kill -9 of `holdfast run`: master, agents, zygotes and ranks end as well."""
    job = start_job(steps=5000)
    job.wait_step(5)
    tree = descendants(job.process.pid)
    job.process.kill()
    job.process.wait()
    deadline = time.monotonic() + 15
    while any(map(alive, tree)):
        assert time.monotonic() < deadline, [pid for pid in tree if alive(pid)]
        time.sleep(0.02)


def test_a_killed_master_is_replaced_and_the_ranks_train_on(start_job: StartJob) -> None:
    """Kill -9 of the master: its successor reads the journal, no rank is restarted."""
    job = start_job(steps=5000)
    before = job.wait_step(15)
    ranks = {job.rank_pid(0), job.rank_pid(1)}
    old = job.home.endpoint()
    assert old is not None
    os.kill(old.pid, signal.SIGKILL)
    job.wait_for("a new epoch", lambda: job.status().epoch > before.epoch)
    after = job.wait_step(before.step + 10)
    assert after.round == before.round
    assert {job.rank_pid(0), job.rank_pid(1)} == ranks


def test_a_port_taken_by_another_is_waited_for(start_job: StartJob) -> None:
    """A stranger listens where the killed master did: its successor serves there once it may."""
    job = start_job(steps=5000)
    before = job.wait_step(15)
    ranks = {job.rank_pid(0), job.rank_pid(1)}
    old = job.home.endpoint()
    assert old is not None
    job.process.send_signal(signal.SIGSTOP)  # so that the port can be taken before the successor
    os.kill(old.pid, signal.SIGKILL)
    with _listen(old.port):
        job.process.send_signal(signal.SIGCONT)
        log = job.home.logs / "master.log"
        job.wait_for("a refused successor", lambda: "cannot be listened on" in log.read_text())
    job.wait_for("a new epoch", lambda: job.status().epoch > before.epoch + 1)
    after = job.wait_step(before.step + 10)
    assert after.round == before.round
    assert {job.rank_pid(0), job.rank_pid(1)} == ranks


def _listen(port: int) -> socket.socket:
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            assert time.monotonic() < deadline, f"port {port} is never free"
            time.sleep(0.02)


def test_a_second_job_of_the_same_name_is_refused(start_job: StartJob, tmp_path: Path) -> None:
    """Two jobs cannot share a directory: exit code 2, and what to do."""
    job = start_job(steps=5000)
    job.wait_step(2)
    done = job.cli("run", str(tmp_path / "job.yaml"))
    assert done.returncode == 2
    assert f"holdfast stop {job.name}" in done.stderr


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
