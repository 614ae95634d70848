"""Every numbered job file in examples/ runs to its end as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from house import forks
from house.extended import usual
from jobs.local_job import FORKED_RUNNER, ROOT

# Whole jobs, beside whatever else runs.
pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]
MORE = pytest.mark.extended(
    "a sample whose script another one runs; its policy has tests of its own",
    held_by=[
        "recovery/test_sample_jobs.py::test_a_sample_job_ends_as_it_says",
        "recovery/test_sample_jobs.py::test_the_demo_kills_a_worker_and_a_node_and_trains_to_its_end",
        "operator/process/jobs/test_rules.py::test_each_rule_leads_to_what_it_says",
        "recovery/test_budgets.py::test_a_job_whose_pods_end_at_once_fails_with_the_reason",
        "recovery/test_checkpoints.py::test_a_world_goes_on_from_memory_and_a_smaller_one_from_what_is_left",
    ],
)

FAILS = {"05-budgets": "NoProgress"}
"""Samples that show how a job ends without success, with the reason that they show."""
ELSEWHERE = {"00-demo", "11-cluster"}
"""Run as `make demo`, and by `kubectl apply` (`tests/operator/process/jobs/test_sample.py`)."""
WITHOUT_SDK = {"10-plain-script"}
"""Scripts that have never heard of Holdfast."""
USUAL = {"10-plain-script"}
"""Samples that run in `make test`: the demo there runs with the SDK."""
FILES = [
    file
    for file in sorted((ROOT / "examples").glob("[0-9][0-9]-*.yaml"))
    if file.stem not in ELSEWHERE
]


def test_every_sample_is_numbered_once() -> None:
    """The glob that the test below is made from finds the samples."""
    numbers = [file.name[:2] for file in FILES]
    assert len(numbers) >= 10
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(
    "file",
    usual(FILES, *(file for file in FILES if file.stem in USUAL), more=MORE),
    ids=lambda file: file.stem,
)
def test_a_sample_job_ends_as_it_says(file: Path, tmp_path: Path) -> None:
    """`holdfast run examples/NN-….yaml` from the root of the repository."""
    words = [str(FORKED_RUNNER), "run", str(file.relative_to(ROOT))]
    environment = {**os.environ, "HOLDFAST_HOME": str(tmp_path)}
    done = forks.run(words, env=environment, cwd=ROOT, timeout=300)
    reason = FAILS.get(file.stem)
    assert done.returncode == (1 if reason else 0), done.stdout[-6000:] + done.stderr[-2000:]
    assert (reason or "succeeded after") in done.stdout
    # A sample follows what README says: holdfast.init() comes before long imports and loading.
    assert file.stem in WITHOUT_SDK or "StepsUnknown" not in done.stdout, done.stdout[-6000:]


@pytest.mark.exclusive  # its ranks train as fast as they can: beside others at five times the CPU
def test_the_demo_kills_a_worker_and_a_node_and_trains_to_its_end(tmp_path: Path) -> None:
    """`make demo`: both kills, what they cost, and what the script says of its result."""
    done = _holdfast(tmp_path, "-m", "holdfast_cli.demo")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "demo: kill -9 of rank 1" in done.stdout
    assert "demo: kill -9 of node 1" in done.stdout
    assert "1 in place, 1 node replaced" in done.stdout
    assert "validation loss after 400 steps" in done.stdout


def _holdfast(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "HOLDFAST_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
