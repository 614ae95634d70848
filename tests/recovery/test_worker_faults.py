"""Training processes end in every awkward moment, and in ways that a person must be told about."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast_wire.messages import JobPhase
from local_job import STEPS, StartJob, assert_same_curve, event_times, losses
from loop_script import loop_script

pytestmark = pytest.mark.train


@pytest.mark.parametrize("phase", ["init", "first-step", "checkpoint"])
def test_a_crash_in_an_awkward_phase_loses_nothing(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path, phase: str
) -> None:
    """Kill -9 while joining, before the first step or in a checkpoint: the losses stay the same."""
    job = start_job(f"--crash-in={phase}:1:{tmp_path / 'once'}")
    assert job.finish() == 0, job.evidence()
    assert (tmp_path / "once").exists()
    assert "1 in place" in job.output, job.evidence()
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)


def test_a_crash_during_recovery_starts_another_round(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path
) -> None:
    """A rank dies, and its successor dies before its first step: the third one trains on."""
    once = tmp_path / "once"
    job = start_job(f"--crash-at=40:1:{once}", f"--crash-in=first-step:0:{tmp_path / 'first'}")
    assert job.finish() == 0, job.evidence()
    assert "2 in place" in job.output
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)


def test_an_exceptions_text_reaches_the_events(start_job: StartJob, tmp_path: Path) -> None:
    """A rank that raises is reported with the exception's type and text, from its error file."""
    job = start_job(f"--raise-at=20:1:{tmp_path / 'once'}", steps=60)
    assert job.finish() == 0, job.evidence()
    assert "RuntimeError" in job.output
    assert "fault on request in step 20" in job.output


def test_a_loop_without_progress_is_stopped_with_its_reason(start_job: StartJob) -> None:
    """A script that fails in the same step each time ends the job, and says NoProgress."""
    budgets = {"noProgressRestarts": {"limit": 2}}
    job = start_job("--raise-at=5:0", failurePolicy={"budgets": budgets})
    assert job.finish() == 1, job.evidence()
    assert "NoProgress" in job.output
    assert "fault on request in step 5" in job.output


def test_the_failure_budget_ends_the_job_when_it_is_spent(start_job: StartJob) -> None:
    """With one failure allowed the second one fails the job, by name."""
    job = start_job(steps=5000, failurePolicy={"budgets": {"failures": {"limit": 1}}})
    first = job.wait_step(15)
    os.kill(job.rank_pid(0), signal.SIGKILL)
    second = job.wait_step(first.step + 1, round_above=first.round)
    job.wait_event("IncidentClosed")
    os.kill(job.rank_pid(1), signal.SIGKILL)
    assert second.phase is JobPhase.TRAINING
    assert job.finish() == 1, job.evidence()
    assert "FailureBudgetExhausted" in job.output


def test_an_exit_code_rule_fails_the_job_at_once(start_job: StartJob) -> None:
    """A FailJob rule for exit code 42 ends the job without a restart."""
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]
    job = start_job("--exit-at=8:42:1", failurePolicy={"rules": rules})
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
