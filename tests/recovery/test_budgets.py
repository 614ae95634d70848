"""Each budget, spent to its end by real losses: the job fails with the budget's own reason."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.loop_script import loop_script
from holdfast_wire.messages import BudgetKind, JobPhase
from house import forks
from jobs.local_job import RunningJob, StartJob, elastic_job

pytestmark = [pytest.mark.train, pytest.mark.deadline]


def _budgets(**limits: int) -> dict[str, Any]:
    return {"budgets": {name: {"limit": limit} for name, limit in limits.items()}}


def _used(job: RunningJob, kind: BudgetKind) -> int:
    return {budget.kind: budget.used for budget in job.status().budgets}[kind]


@pytest.mark.extended(
    "the rule is the core's; the way to it is the failure budget's",
    held_by=[
        "master/unit/job/test_node_losses.py::test_the_preemption_budget_ends_the_job",
        "recovery/test_budgets.py::test_a_job_whose_pods_end_at_once_fails_with_the_reason",
    ],
)
def test_the_preemption_budget_ends_the_job_when_it_is_spent(
    start_job: StartJob, tmp_path: Path
) -> None:
    """One notice is allowed: the second one fails the job, and no failure was charged."""
    script = loop_script(tmp_path, "--steps=100000")
    job = start_job(script=script, failurePolicy=_budgets(preemptions=1, failures=0))
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


@pytest.mark.extended(
    "the rule is the core's; the way to it is the failure budget's",
    held_by=[
        "master/unit/policies/test_budgets.py::test_every_kind_has_a_name_and_an_end",
        "recovery/test_budgets.py::test_a_job_whose_pods_end_at_once_fails_with_the_reason",
    ],
)
def test_the_rescale_budget_ends_the_job_when_it_is_spent(tmp_path: Path) -> None:
    """None is allowed: a node that comes late changes the size, and nobody asked for that."""
    file = elastic_job(
        "late",
        [],
        model=False,
        failurePolicy=_budgets(rescales=0),
        elasticPolicy={"joinWindowSeconds": 1},
    )
    [container] = file["spec"]["worker"]["template"]["spec"]["containers"]
    container["command"] = ["sh", "-c", LATE, "sh", *loop_script(tmp_path, "--steps=100000")]
    with RunningJob(file, tmp_path) as job:
        assert job.finish(90) == 1, job.evidence()
        assert "RescaleBudgetExhausted" in job.output, job.evidence()


def _trains_with(job: RunningJob, world_size: int, above: int) -> bool:
    status = job.status()
    trains = status.phase is JobPhase.TRAINING and status.round > above
    return trains and status.world_size == world_size


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


_UNENDABLE = """
import os, sys
from pathlib import Path
from holdfast_cli.runner import processes
from holdfast_cli.runner.start import RunOptions, run_job

def refuse(_session):
    raise PermissionError(1, "Operation not permitted")

processes._kill_session = refuse
sys.exit(run_job(Path(sys.argv[1]), RunOptions(), os.environ))
"""


def test_a_pod_is_seen_to_end_whatever_it_leaves(tmp_path: Path) -> None:
    """A process of its session that may not be ended holds up neither the pod nor the job."""
    file = elastic_job("unendable", [], failurePolicy=_budgets(noProgressRestarts=0), replicas=1)
    [container] = file["spec"]["worker"]["template"]["spec"]["containers"]
    container["command"] = ["sh", "-c", "exit 3"]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(file))
    done = forks.run(
        ["-c", _UNENDABLE, str(tmp_path / "job.yaml")],
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")},
        timeout=60,
        imports=forks.Imports.SERVICES,
    )
    assert done.returncode == 1, done
    assert "ended with exit code 3" in done.stdout
    assert "has left cannot be ended: [Errno 1] Operation not permitted" in done.stderr
