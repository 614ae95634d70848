"""A training process dies: the job goes on in place, and follows the unbroken run's losses."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from local_job import STEPS, StartJob, assert_same_curve, losses

pytestmark = pytest.mark.train


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_costs_one_incident_and_no_loss(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path, rank: int
) -> None:
    """Kill -9 of any rank: one new round, one failure charged, the same losses."""
    job = start_job()
    before = job.wait_step(30)
    os.kill(job.rank_pid(rank), signal.SIGKILL)
    after = job.wait_step(31, round_above=before.round)
    assert after.world_size == 2
    assert after.round == before.round + 1
    assert job.finish() == 0, job.evidence()
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)
    assert "signal 9 (SIGKILL)" in job.output
    assert "budget: failures" in job.output
