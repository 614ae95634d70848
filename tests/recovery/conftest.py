"""Fixtures of the recovery tests: a job of their own each, and one unbroken run to compare with."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from house import forks
from jobs.local_job import ROOT, STEPS, TRAIN, RunningJob, StartJob, elastic_job, losses


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The loss of each step of a run that nothing happens to; made once for all workers."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    log = folder / "unbroken-loss.jsonl"
    with (folder / "unbroken.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not log.exists():
            _train(log)
    return losses(log)


def _train(log: Path) -> None:
    made = log.with_suffix(".new")
    words = [str(ROOT / TRAIN[0]), *TRAIN[1:], f"--steps={STEPS}", f"--loss-log={made}"]
    done = forks.run(words, env=os.environ, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    made.rename(log)


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[StartJob]:
    """Start a job of the example, or of a script without a model; ended at the test's end."""
    jobs: list[RunningJob] = []

    def start(
        *more: str,
        steps: int = STEPS,
        script: list[str] | None = None,
        cold: bool = False,
        **spec: Any,
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
        jobs.append(RunningJob(job, tmp_path, cold=cold))
        return jobs[-1]

    yield start
    for job in jobs:
        job.__exit__()
