"""Each budget, spent to its end by real losses: the job fails with the budget's own reason."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast_wire.messages import BudgetKind, JobPhase
from local_job import TRAIN, RunningJob, StartJob, elastic_job

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


LATE = (
    'if [ "$HOLDFAST_NODE_RANK" = 1 ]; then sleep 10; fi; exec holdfast-run --nproc-per-node=1 "$@"'
)


def test_the_rescale_budget_ends_the_job_when_it_is_spent(tmp_path: Path) -> None:
    """None is allowed: a node that comes late changes the size, and nobody asked for that."""
    file = elastic_job(
        "late",
        [],
        failurePolicy=_budgets(rescales=0),
        elasticPolicy={"joinWindowSeconds": 1},
    )
    [container] = file["spec"]["worker"]["template"]["spec"]["containers"]
    container["command"] = ["sh", "-c", LATE, "sh", *TRAIN, "--steps=5000"]
    with RunningJob(file, tmp_path) as job:
        assert job.finish(90) == 1, job.evidence()
        assert "RescaleBudgetExhausted" in job.output, job.evidence()


def _trains_with(job: RunningJob, world_size: int, above: int) -> bool:
    status = job.status()
    trains = status.phase is JobPhase.TRAINING and status.round > above
    return trains and status.world_size == world_size


def test_a_killed_zygote_is_a_failure(start_job: StartJob) -> None:
    """Its agent cannot go on; the pod that is then made anew does not hide it."""
    job = start_job(steps=5000)
    before = job.wait_step(15)
    node = job.nodes()[1]
    [zygote] = {_parent(rank.pid) for rank in node.ranks}
    assert zygote != node.agent_pid
    os.kill(zygote, signal.SIGKILL)
    job.wait_for("both nodes again", lambda: _trains_with(job, 2, before.round))
    job.wait_for("the charge", lambda: _used(job, BudgetKind.FAILURES) == 1)
    causes = [incident.cause for incident in job.goodput().incidents]
    assert "NodeRemoved" not in causes, job.evidence()


def test_a_job_whose_pods_end_at_once_fails_with_the_reason(tmp_path: Path) -> None:
    """Nothing ever trains: each end is told, and soon the job is given up."""
    file = elastic_job("stillborn", [], failurePolicy=_budgets(noProgressRestarts=1))
    [container] = file["spec"]["worker"]["template"]["spec"]["containers"]
    container["command"] = ["sh", "-c", "exit 3"]
    with RunningJob(file, tmp_path) as job:
        assert job.finish(60) == 1
        assert "before its agent joined" in job.output
        assert "ended with exit code 3" in job.output
        assert "noProgressRestarts allows 1" in job.output


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
