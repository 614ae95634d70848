"""Every command that asks, against a real master, while the job runs and after its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from local_job import RunningJob, StartJob
from loop_script import loop_script

pytestmark = pytest.mark.train

ASKING = ("status", "nodes", "events", "goodput")


def _json(job: RunningJob, *words: str) -> Any:
    done = job.cli(*words, "-o", "json")
    assert done.returncode == 0, done.stderr

    def refuse(name: str) -> None:
        raise AssertionError(f"{words}: {name} is no JSON")

    return json.loads(done.stdout, parse_constant=refuse)


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
    assert _json(job, "status")[0]["state"] == "running"
    assert _json(job, "scale", job.name, "1")["generation"] == 2
    assert _json(job, "stop", job.name) == {"job": job.name, "ended": False}
    assert job.finish(60) == 1, job.evidence()
    _check_ended(job)


def _check_ended(job: RunningJob) -> None:
    status = _json(job, "status", job.name)
    assert (status["phase"], status["reason"]) == ("FAILED", "StoppedByUser")
    for command in ASKING:
        assert job.cli(command, job.name).returncode == 0, command
    assert _json(job, "events", job.name)[-1]["sequence"] > 0
    assert _json(job, "goodput", job.name)["node_seconds"] > 0
    again = job.cli("stop", job.name)
    assert (again.returncode, "has ended already: Failed" in again.stdout) == (0, True)
    assert job.cli("scale", job.name, "2").returncode == 5
    assert _json(job, "status")[0]["state"] == "failed"
    watched = job.cli("watch", job.name, "-o", "json", timeout_s=20)
    assert watched.returncode == 1
    lines = [json.loads(line) for line in watched.stdout.splitlines()]
    assert lines[-1]["status"]["phase"] == "FAILED"
    assert (job.home.path / "ended.json").stat().st_mode & 0o777 == 0o600
