"""The local runner itself: interrupted, killed, detached; what it leaves behind is nothing."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from agents.loop_script import loop_script
from holdfast_cli.final_state import read as read_ending
from holdfast_cli.job_directory import is_running, job_home
from holdfast_cli.runner.processes import descendants
from house.patience import patience
from jobs.local_job import StartJob, alive, elastic_job

pytestmark = [pytest.mark.train, pytest.mark.deadline]


def _shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}  # noqa: S108 - it is what is tested


@pytest.mark.exclusive  # it compares all shared memory of the machine
@pytest.mark.parametrize(
    ("number", "code", "model"),
    [(signal.SIGINT, 130, True), (signal.SIGTERM, 143, False)],
)
def test_an_interrupt_leaves_no_process_and_no_shared_memory(
    start_job: StartJob, tmp_path: Path, number: signal.Signals, code: int, *, model: bool
) -> None:
    """Ctrl-C: exit code 130, every process of the job gone, nothing left in /dev/shm."""
    before = _shared_memory()
    script = None if model else loop_script(tmp_path, "--steps=100000")
    job = start_job(steps=5000, script=script)
    job.wait_step(5)
    tree = descendants(job.process.pid)
    assert len(tree) >= 6
    os.kill(job.process.pid, number)
    assert job.finish(60) == code, job.evidence()
    assert [pid for pid in tree if alive(pid)] == []
    assert _shared_memory() - before == set()


def test_a_closed_terminal_ends_the_job_at_a_barrier(tmp_path: Path) -> None:
    """As SIGTERM does: all ranks save and stop after one step, and how it ended is kept."""
    script = loop_script(tmp_path, "--steps=100000")
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(elastic_job("hup", script, model=False, replicas=1)))
    environ = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home"), "TERM": "xterm"}
    command = [sys.executable, "-m", "holdfast_cli.main", "run", str(file)]
    runner, terminal = pty.fork()
    if runner == 0:
        os.execve(command[0], command, environ)
    seen = b""
    while b"Training" not in seen:
        seen += os.read(terminal, 65536)
    os.close(terminal)
    _, status = os.waitpid(runner, 0)
    assert os.waitstatus_to_exitcode(status) == 129, seen.decode()
    ended = read_ending(job_home(environ, "hup"))
    assert ended is not None
    assert "BarrierSet" in {event.reason for event in ended.events.events}
    assert ended.status.reason == "StoppedByOperator"


def test_logs_show_the_last_line_before_the_summary(tmp_path: Path) -> None:
    """Whatever the follower was busy with when the job ended."""
    script = tmp_path / "talk.py"
    script.write_text("for n in range(50000): print('line', n)\nprint('the end', flush=True)\n")
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(elastic_job("talk", [str(script)], model=False, replicas=1)))
    done = subprocess.run(
        [sys.executable, "-m", "holdfast_cli.main", "run", "--logs", str(file)],
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed, _, summary = done.stdout.partition("the end")
    assert printed.count("] line ") == 50_000
    assert "Job talk succeeded" in summary
    assert "] line " not in summary


def test_a_detached_job_has_all_its_logs_in_one_place(tmp_path: Path) -> None:
    """The background part's output lies beside the master's and the pods' logs."""
    file = tmp_path / "job.yaml"
    script = ["-c", "sleep 0.1"]
    job = elastic_job("away", script, flags=["--no-python", "sh"], model=False, replicas=1)
    file.write_text(yaml.safe_dump(job))
    environ = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")}
    logs = job_home(environ, "away").logs
    for _ in range(2):  # the second time there is a directory of the run before
        done = subprocess.run(
            [sys.executable, "-m", "holdfast_cli.main", "run", "--detach", str(file)],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert str(logs / "runner.log") in done.stdout
        deadline = time.monotonic() + 60
        while "Job away succeeded" not in (logs / "runner.log").read_text():
            assert time.monotonic() < deadline, (logs / "runner.log").read_text()
            time.sleep(0.05)
        while is_running(job_home(environ, "away").record()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert sorted(path.name for path in logs.parent.parent.glob(".away.*")) == [".away.lock"]


def test_killing_the_runner_ends_the_whole_job(start_job: StartJob, tmp_path: Path) -> None:
    """Kill -9 of `holdfast run`: master, agents, zygotes and ranks end as well."""
    job = start_job(script=loop_script(tmp_path, "--steps=100000"))
    job.wait_step(5)
    tree = descendants(job.process.pid)
    job.process.kill()
    job.process.wait()
    deadline = time.monotonic() + 15 * patience()
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
    assert f"\nLogs: {job.home.logs}" in job.output


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
    deadline = time.monotonic() + 30 * patience()
    while "tried again" not in job.output:
        assert time.monotonic() < deadline, job.evidence()
        assert job.process.poll() is None, job.evidence()
        time.sleep(0.05)
    assert alive(rank)
    epoch.rmdir()
    aside.rename(epoch)
    after = job.wait_step(before.step + 20)
    assert (after.epoch, after.round) == (before.epoch + 1, before.round)
    assert job.rank_pid(0) == rank
    assert "Traceback" not in job.output


def test_an_ending_that_cannot_be_kept_is_said_and_changes_nothing(
    start_job: StartJob, tmp_path: Path
) -> None:
    """The job has succeeded, whatever the disk of its directory does."""
    job = start_job(script=loop_script(tmp_path, "--steps=400"))
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
