"""The world changes its size on purpose: no step is lost, and the losses stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.local_job import STEPS, StartJob, assert_same_curve, loss_lines, losses, slow

pytestmark = [pytest.mark.train, pytest.mark.deadline]


def test_scaling_and_restarting_by_command_loses_no_step(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path
) -> None:
    """2 -> 9, which a bound forbids, -> 1 -> 2, then a restart: each step is done exactly once."""
    job = start_job(slow(300), maxReplicas=2)
    before = job.wait_step(15)
    refused = job.cli("scale", job.name, "9")
    assert refused.returncode == 5
    assert "maxReplicas" in refused.stderr
    done = job.cli("scale", job.name, "1")
    assert done.returncode == 0, done.stderr
    small = job.wait_step(before.step, round_above=before.round)
    assert small.world_size == 1
    done = job.cli("scale", job.name, "2")
    assert done.returncode == 0, done.stderr
    big = job.wait_step(small.step, round_above=small.round)
    assert big.world_size == 2
    done = job.cli("restart", job.name)
    assert done.returncode == 0, done.stderr
    again = job.wait_step(big.step, round_above=big.round)
    assert again.world_size == 2
    assert job.finish() == 0, job.evidence()
    steps = [line["step"] for line in loss_lines(tmp_path / "loss.jsonl")]
    assert steps == list(range(1, STEPS + 1)), "a step was done twice or left out"
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)
    assert "RolledBack" not in job.output
