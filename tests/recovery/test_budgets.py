"""Each budget, spent to its end by real losses: the job fails with the budget's own reason."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from holdfast_wire.messages import BudgetKind, JobPhase
from local_job import RunningJob, StartJob

pytestmark = pytest.mark.train


def _budgets(**limits: int) -> dict[str, Any]:
    return {"budgets": {name: {"limit": limit} for name, limit in limits.items()}}


def _used(job: RunningJob, kind: BudgetKind) -> int:
    return {budget.kind: budget.used for budget in job.status().budgets}[kind]


def test_the_preemption_budget_ends_the_job_when_it_is_spent(start_job: StartJob) -> None:
    """One notice is allowed: the second one fails the job, and no failure was charged."""
    job = start_job(steps=5000, failurePolicy=_budgets(preemptions=1, failures=0))
    before = job.wait_step(15)
    os.kill(job.agent_pid(1), signal.SIGTERM)
    job.wait_for("the first charge", lambda: _used(job, BudgetKind.PREEMPTIONS) == 1)
    job.wait_for("both nodes again", lambda: _trains_with(job, 2, before.round))
    os.kill(job.agent_pid(1), signal.SIGTERM)
    assert job.finish() == 1, job.evidence()
    assert "PreemptionBudgetExhausted" in job.output, job.evidence()
    assert "FailureBudgetExhausted" not in job.output


def test_the_rescale_budget_ends_the_job_when_it_is_spent(start_job: StartJob) -> None:
    """None is allowed: a lost node's return is a change of size that nobody asked for."""
    job = start_job(steps=5000, failurePolicy=_budgets(rescales=0))
    job.wait_step(15)
    os.kill(job.agent_pid(1), signal.SIGKILL)
    assert job.finish() == 1, job.evidence()
    assert "RescaleBudgetExhausted" in job.output, job.evidence()


def _trains_with(job: RunningJob, world_size: int, above: int) -> bool:
    status = job.status()
    trains = status.phase is JobPhase.TRAINING and status.round > above
    return trains and status.world_size == world_size
