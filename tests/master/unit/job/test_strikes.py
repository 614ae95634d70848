"""Strikes against hosts: reported to the operator, and those of other jobs counted."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast_master.inputs import OperatorMessage
from holdfast_master.instructions import SendToOperator
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, started


def crashed() -> SteeredJob:
    """A job of two nodes that trains again after a crash on the second one."""
    job = started(2)
    job.agents[1].crash_worker()
    job.run(20.0)
    return job


def reported(job: SteeredJob) -> list[wire.StrikesReported]:
    """What the operator was told of strikes."""
    told = (one.response.message for one in job.instructions if isinstance(one, SendToOperator))
    return [one for one in told if isinstance(one, wire.StrikesReported)]


def elsewhere(job: SteeredJob, host: str, age: float) -> wire.NodeStruck:
    """A strike of another job."""
    at = job.moment().unix - age
    return wire.NodeStruck(
        host=host, cause="Straggler", unix_time=at, job="team/other", text="slow"
    )


def test_each_strike_is_reported_and_all_of_them_to_a_new_stream() -> None:
    """The operator may have been away, or be another one; a master that follows tells them too."""
    job = crashed()
    (first,) = reported(job)
    assert [(one.host, one.cause, one.job) for one in first.strikes] == [("k8s-1", "Failure", "")]
    job.operator.leave()
    job.operator.come_back()
    job.run(1.0)
    assert reported(job) == [first] * 2
    job.kill_master(1.0)
    job.run(15.0)
    assert reported(job) == [first] * 3


def test_the_strikes_of_one_moment_are_one_report() -> None:
    """Before the end of the job, after which nobody listens."""
    budget = wire.Budget(kind=wire.BudgetKind.FAILURES, limit=0, window_seconds=0)
    job = started(2, budgets=(budget,))
    job.agents[1].crash_worker()
    job.run(20.0)
    told = [one.response.message for one in job.instructions if isinstance(one, SendToOperator)]
    assert [type(one) for one in told if not isinstance(one, wire.JobStatus)][-2:] == [
        wire.StrikesReported,
        wire.FinishDecision,
    ]
    batch = job.core.job.out
    for host in ("k8s-0", "k8s-1"):
        batch.strike(wire.NodeStruck(host=host, cause="Hang", unix_time=job.moment().unix))
    tells = [one.response.message for one in batch.finish() if isinstance(one, SendToOperator)]
    (report,) = [one for one in tells if isinstance(one, wire.StrikesReported)]
    assert [one.host for one in report.strikes] == ["k8s-0", "k8s-1"]


def test_strikes_of_other_jobs_count_until_the_operator_says_otherwise() -> None:
    """They are in the history with their job, oldest first, and never in the journal."""
    job = crashed()
    told = wire.ClusterStrikes(
        strikes=(elsewhere(job, "k8s-1", 60.0), elsewhere(job, "k8s-0", 60.0)),
        avoided=(wire.AvoidedHost(host="k8s-1", reason="Straggler 1 in team/other"),),
    )
    job.take(OperatorMessage(told))
    worst, other = job.core.history(job.moment())
    assert (worst.host, worst.suspect, other.host) == ("k8s-1", False, "k8s-0")
    assert [one.job for one in worst.strikes] == ["team/other", ""]
    assert (worst.avoided, other.avoided) == ("Straggler 1 in team/other", "")
    third = dataclasses.replace(told.strikes[0], job="team/third")
    job.take(OperatorMessage(wire.ClusterStrikes(strikes=(*told.strikes[:1] * 2, third))))
    (worst,) = job.core.history(job.moment())
    assert worst.suspect
    assert worst.points == pytest.approx(2.5, abs=0.01), "two of one job count once"
    assert "(3 of team/other, team/third)" in worst.reason
    assert [one.job for one in job.refold().strikes] == [""]
    job.operator.leave()
    job.operator.come_back()
    job.run(1.0)
    (worst,) = job.core.history(job.moment())
    assert [one.job for one in worst.strikes] == [""]


def test_causes_that_a_master_does_not_know_are_left_out() -> None:
    """An operator of a newer release may tell them."""
    job = crashed()
    strange = wire.NodeStruck(host="k8s-0", cause="Sunspots", unix_time=1.0, job="team/other")
    job.take(OperatorMessage(wire.ClusterStrikes(strikes=(strange,))))
    assert [one.host for one in job.core.history(job.moment())] == ["k8s-1"]
