"""Training processes end in every awkward moment, and in ways that a person must be told about."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from agents.loop_script import loop_script
from holdfast_wire.messages import JobPhase
from jobs.local_job import STEPS, StartJob, assert_same_curve, event_times, losses

pytestmark = [pytest.mark.train, pytest.mark.deadline]


def test_crashes_in_every_awkward_moment_lose_nothing(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path
) -> None:
    """Kill -9 while joining, before the first step twice, in a checkpoint, in steps; either rank.

    Each costs one round and one of a budget, and the losses stay the same.
    """
    moments = ["in=init:1", "in=first-step:1", "in=first-step:1", "in=checkpoint:1"]
    moments += ["at=40:0", "at=80:1"]
    once = [tmp_path / f"once-{number}" for number in range(len(moments))]
    flags = zip(moments, once, strict=True)
    job = start_job(*(f"--crash-{moment}:{file}" for moment, file in flags))
    assert job.finish() == 0, job.evidence()
    assert all(file.exists() for file in once)
    assert f"{len(moments)} in place" in job.output, job.evidence()
    assert f"{len(moments) + 1} rounds" in job.output
    assert job.output.count("; budget: ") == len(moments), job.evidence()
    assert "signal 9 (SIGKILL)" in job.output
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)


@pytest.mark.extended(
    "the sample of budgets does the same on real processes",
    held_by=[
        "recovery/test_sample_jobs.py::test_a_sample_job_ends_as_it_says",
    ],
)
def test_a_loop_without_progress_is_stopped_with_its_reason(
    start_job: StartJob, tmp_path: Path
) -> None:
    """A script that raises in the same step each time: NoProgress, and the exception's text."""
    budgets = {"noProgressRestarts": {"limit": 2}}
    job = start_job(
        script=loop_script(tmp_path, "--raise-text=no such shard"),
        failurePolicy={"budgets": budgets},
    )
    assert job.finish() == 1, job.evidence()
    assert "NoProgress" in job.output
    assert "RuntimeError: no such shard" in job.output


@pytest.mark.extended(
    "one real job: budgets are tested by themselves",
    held_by=[
        "master/unit/policies/test_budgets.py::test_balance",
        "recovery/test_budgets.py::test_a_job_whose_pods_end_at_once_fails_with_the_reason",
    ],
)
def test_the_failure_budget_ends_the_job_when_it_is_spent(
    start_job: StartJob, tmp_path: Path
) -> None:
    """With one failure allowed the second one fails the job, by name."""
    job = start_job(
        script=loop_script(tmp_path, "--steps=100000"),
        failurePolicy={"budgets": {"failures": {"limit": 1}}},
    )
    first = job.wait_step(15)
    os.kill(job.rank_pid(0), signal.SIGKILL)
    second = job.wait_step(first.step + 1, round_above=first.round)
    job.wait_event("IncidentClosed")
    os.kill(job.rank_pid(1), signal.SIGKILL)
    assert second.phase is JobPhase.TRAINING
    assert job.finish() == 1, job.evidence()
    assert "FailureBudgetExhausted" in job.output


@pytest.mark.extended(
    "rules of a cluster's job are the same",
    held_by=[
        "master/unit/policies/test_failure_blame.py::test_first_matching_rule_answers",
        "operator/process/jobs/test_rules.py::test_each_rule_leads_to_what_it_says",
    ],
)
def test_an_exit_code_rule_fails_the_job_at_once(start_job: StartJob, tmp_path: Path) -> None:
    """A FailJob rule for exit code 42 ends the job without a restart."""
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]
    script = loop_script(tmp_path, f"--exit-once=42:1:{tmp_path / 'once'}")
    job = start_job(script=script, failurePolicy={"rules": rules})
    assert job.finish() == 1, job.evidence()
    assert "0 in place" in job.output, job.evidence()
    assert "42" in job.output


def test_a_node_to_avoid_takes_no_other_node_along(start_job: StartJob, tmp_path: Path) -> None:
    """ReplaceOnOtherNode: one new process in the culprit's place, and the job goes on."""
    rules = [{"action": "ReplaceOnOtherNode", "onExitCodes": {"operator": "In", "values": [3]}}]
    once = tmp_path / "once"
    job = start_job(
        script=loop_script(tmp_path, f"--exit-once=3:1:{once}"), failurePolicy={"rules": rules}
    )
    assert job.finish() == 0, job.evidence()
    assert once.exists()
    excluded = event_times(job.output, "NodeExcluded")
    assert len(excluded) == 1, job.evidence()
    assert f"{job.name}-worker-1-0 is avoided" in excluded[0]
    assert (job.home.logs / f"{job.name}-worker-1-1.log").exists()
    assert not (job.home.logs / f"{job.name}-worker-0-1.log").exists()


@pytest.mark.extended(
    "the same under a run's own master, which is the same core",
    held_by=[
        "agent/process/test_standalone.py::test_workers_may_end_at_different_times",
    ],
)
def test_ranks_may_end_far_apart(start_job: StartJob, tmp_path: Path) -> None:
    """A rank that ends long after the other does not make the job fail."""
    script = tmp_path / "apart.py"
    script.write_text(
        "import os, time, holdfast\n"
        "holdfast.init().step(1)\n"
        "time.sleep(8 * int(os.environ['RANK']))\n"
    )
    job = start_job(script=[str(script)])
    assert job.finish() == 0, job.evidence()
    assert len(event_times(job.output, "WorkerFinished")) == 2
    assert "0 in place" in job.output
