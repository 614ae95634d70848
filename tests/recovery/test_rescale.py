"""The world changes its size on purpose: no step is lost, and the losses stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_wire.messages import BudgetKind
from local_job import STEPS, StartJob, assert_same_curve, loss_lines, losses

pytestmark = pytest.mark.train


def test_scaling_down_and_up_by_command_loses_no_step(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path
) -> None:
    """2 -> 1 -> 2 while training: each step is done exactly once."""
    job = start_job("--extra-work-ms=200", maxReplicas=2)
    before = job.wait_step(15)
    done = job.cli("scale", job.name, "1")
    assert done.returncode == 0, done.stderr
    small = job.wait_step(before.step, round_above=before.round)
    assert small.world_size == 1
    done = job.cli("scale", job.name, "2")
    assert done.returncode == 0, done.stderr
    big = job.wait_step(small.step, round_above=small.round)
    assert big.world_size == 2
    assert job.finish() == 0, job.evidence()
    steps = [line["step"] for line in loss_lines(tmp_path / "loss.jsonl")]
    assert steps == list(range(1, STEPS + 1)), "a step was done twice or left out"
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)
    assert "RolledBack" not in job.output


def test_scaling_above_the_first_size_adds_a_node(start_job: StartJob) -> None:
    """Without maxReplicas the bound follows replicas: 2 -> 3."""
    job = start_job(steps=5000)
    before = job.wait_step(10)
    done = job.cli("scale", job.name, "3")
    assert done.returncode == 0, done.stderr
    assert job.wait_step(before.step, round_above=before.round).world_size == 3


def test_a_scale_that_breaks_a_bound_is_refused_by_name(start_job: StartJob) -> None:
    """The operator's words reach the person, and nothing changes."""
    job = start_job(steps=5000, maxReplicas=2)
    before = job.wait_step(5)
    done = job.cli("scale", job.name, "9")
    assert done.returncode == 5
    assert "maxReplicas" in done.stderr
    assert job.wait_step(before.step + 5).round == before.round


def test_a_drained_node_leaves_at_a_boundary_and_costs_no_budget(start_job: StartJob) -> None:
    """Holdfast drain: the world goes on without the node, no step is lost, nothing is charged."""
    job = start_job(steps=5000)
    before = job.wait_step(15)
    done = job.cli("drain", job.name, "1")
    assert done.returncode == 0, done.stderr
    after = job.wait_step(before.step, round_above=before.round)
    assert after.world_size == 1
    job.wait_event("NodeReleased")
    assert all(event.reason != "RolledBack" for event in job.events()), job.evidence()
    used = {budget.kind: budget.used for budget in job.status().budgets}
    assert used[BudgetKind.FAILURES] == used[BudgetKind.PREEMPTIONS] == 0


def test_restart_by_a_person_costs_no_budget(start_job: StartJob) -> None:
    """Holdfast restart: new processes in a new round, no budget."""
    job = start_job(steps=5000)
    before = job.wait_step(15)
    pids = {job.rank_pid(0), job.rank_pid(1)}
    assert job.cli("restart", job.name).returncode == 0
    job.wait_step(before.step, round_above=before.round)
    assert not pids & {job.rank_pid(0), job.rank_pid(1)}
    assert sum(budget.used for budget in job.status().budgets) == 0
