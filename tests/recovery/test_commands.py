"""Every command but `run`, against a real master, while the job runs and after its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agents.loop_script import loop_script
from holdfast_cli.job_directory import ENV_HOME
from holdfast_cli.main import main
from jobs.local_job import RunningJob, StartJob

pytestmark = [pytest.mark.train, pytest.mark.deadline]

ASKING = ("status", "nodes", "events", "goodput")


def _json(job: RunningJob, *words: str) -> Any:
    # In this process: twenty starts of Python would be most of the test's time.
    done = CliRunner().invoke(main, [*words, "-o", "json"], env={ENV_HOME: job.environ[ENV_HOME]})
    assert done.exit_code == 0, done.stderr

    def refuse(name: str) -> None:
        raise AssertionError(f"{words}: {name} is no JSON")

    return json.loads(done.stdout, parse_constant=refuse)


def _text(job: RunningJob, *words: str) -> str:
    done = CliRunner().invoke(main, [*words], env={ENV_HOME: job.environ[ENV_HOME]})
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_commands_answer_while_a_job_runs_and_after_its_end(
    start_job: StartJob, tmp_path: Path
) -> None:
    """In words and in JSON, with a loss of NaN; stop and watch end as they say."""
    job = start_job(
        script=loop_script(tmp_path, "--steps=100000", "--step-seconds=0.1", "--loss=nan")
    )
    job.wait_step(3)
    assert "Training" in job.cli("status", job.name).stdout
    assert _json(job, "status", job.name)["loss"] is None
    assert [node["state"] for node in _json(job, "nodes", job.name)] == ["ACTIVE", "ACTIVE"]
    every = _json(job, "events", job.name)
    assert "WorldDecided" in {event["reason"] for event in every}
    newest = _json(job, "events", job.name, "--limit", "2")
    assert newest[-1]["sequence"] >= every[-1]["sequence"]
    assert len(newest) == 2
    assert _json(job, "goodput", job.name)["node_seconds"] > 0
    stacks = _json(job, "stacks", job.name)
    assert all("loop.py" in node["stacks"][0]["text"] for node in stacks)
    assert not any("holdfast_agent" in node["stacks"][0]["text"] for node in stacks)
    assert _json(job, "status")[0]["state"] == "running"
    with _watch(job) as watching:
        _steer(job)
        assert _json(job, "stop", job.name) == {"job": job.name, "ended": False}
        assert job.finish(60) == 1, job.evidence()
        _check_watched(*watching.communicate(timeout=30), watching.returncode)
    _check_ended(job)


def _watch(job: RunningJob) -> subprocess.Popen[str]:
    """Start a live watch, and return once it has shown where the job is."""
    watching = subprocess.Popen(
        [sys.executable, "-m", "holdfast_cli.main", "watch", job.name, "-o", "json"],
        env=job.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    for line in watching.stdout:
        if "status" in json.loads(line):
            break
    return watching


def _steer(job: RunningJob) -> None:
    """Restart the job, drain a node, change its size: each leads to a round that trains."""
    before = job.status().round
    assert _json(job, "restart", job.name, "--reason", "a test")["round"] == before
    before = job.wait_step(1, round_above=before).round
    assert "node 1" in _json(job, "drain", job.name, "1")["text"]
    job.wait_event("NodeDraining")
    before = job.wait_step(1, round_above=before).round
    assert _json(job, "scale", job.name, "1")["generation"] == 2


def _check_watched(out: str, err: str, code: int) -> None:
    """Every line is JSON; what was done while it ran is in it, and how the job ended."""
    lines = [json.loads(line) for line in out.splitlines()]
    reasons = [line["event"]["reason"] for line in lines if "event" in line]
    assert {"NodeDraining", "IncidentOpened"} <= set(reasons)
    assert reasons.count("WorldTraining") >= 2, reasons
    assert any("status" in line for line in lines)
    assert code == 1
    assert "StoppedByUser" in err


def _check_ended(job: RunningJob) -> None:
    status = _json(job, "status", job.name)
    assert (status["phase"], status["reason"]) == ("FAILED", "StoppedByUser")
    for command in ASKING:
        assert _text(job, command, job.name), command
    assert _json(job, "events", job.name)[-1]["sequence"] > 0
    assert _json(job, "goodput", job.name)["node_seconds"] > 0
    again = job.cli("stop", job.name)
    assert (again.returncode, "has ended already: Stopped" in again.stdout) == (0, True)
    assert job.cli("scale", job.name, "2").returncode == 5
    assert _json(job, "status")[0]["state"] == "stopped"
    watched = job.cli("watch", job.name, "-o", "json", timeout_s=20)
    assert watched.returncode == 1
    lines = [json.loads(line) for line in watched.stdout.splitlines()]
    assert lines[-1]["status"]["phase"] == "FAILED"
    assert (job.home.path / "ended.json").stat().st_mode & 0o777 == 0o600
