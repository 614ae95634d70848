"""Fixtures of the recovery tests: a job of their own each, and one unbroken run to compare with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.local_job import ROOT, STEPS, TRAIN, RunningJob, StartJob, elastic_job, losses


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The loss of each step of a run in one process that nothing happens to."""
    log = tmp_path_factory.mktemp("unbroken") / "loss.jsonl"
    subprocess.run(
        [sys.executable, *TRAIN, f"--steps={STEPS}", f"--loss-log={log}"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=300,
    )
    return losses(log)


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[StartJob]:
    """Start a job of the example, or of a script without a model; ended at the test's end."""
    jobs: list[RunningJob] = []

    def start(
        *more: str, steps: int = STEPS, script: list[str] | None = None, **spec: Any
    ) -> RunningJob:
        example = [
            *TRAIN,
            f"--steps={steps}",
            f"--loss-log={tmp_path / 'loss.jsonl'}",
            f"--checkpoint-dir={tmp_path / 'checkpoints'}",
            *more,
        ]
        name = f"test-{len(jobs)}"
        job = elastic_job(name, script or example, model=script is None, **spec)
        jobs.append(RunningJob(job, tmp_path))
        return jobs[-1]

    yield start
    for job in jobs:
        job.__exit__()
