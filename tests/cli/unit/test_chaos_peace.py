"""Runs that `--chaos peace=JOB` may name to be compared with."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from holdfast_cli.chaos.run import run_with_chaos
from holdfast_cli.errors import BadInputError
from holdfast_cli.job_directory import JobRecord, job_home, process_started

CONTAINER = {"name": "worker", "command": ["true"]}
JOB = {
    "apiVersion": "holdfast.dev/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "gpt"},
    "spec": {"replicas": 2, "worker": {"template": {"spec": {"containers": [CONTAINER]}}}},
}


@pytest.mark.parametrize(
    ("peace", "runs", "words"),
    [
        ("gpt", False, "compared with itself"),
        ("calm", True, "still running"),
        ("calm", False, "no steps to compare with"),
    ],
    ids=["itself", "running", "without steps"],
)
def test_what_cannot_be_compared_with_is_refused_before_anything_starts(
    tmp_path: Path, peace: str, words: str, *, runs: bool
) -> None:
    """The verdict would come after the whole run, or be an untrue one."""
    environ = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")}
    pid = os.getpid() if runs else 1
    home = job_home(environ, peace)
    home.create()
    started = process_started(pid) if runs else 0
    home.write_record(JobRecord(peace, "u", pid, started or 0, "/job.yaml"))
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(JOB))
    with pytest.raises(BadInputError, match=words) as caught:
        run_with_chaos(file, f"seed=1,mtbf=5,peace={peace}", environ)
    assert f"peace={peace!r}" in str(caught.value)
    assert list(home.path.parent.glob("*")) == [home.path]
