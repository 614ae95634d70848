"""Pods that their node ended, lost or turned away: none of it is laid to the script."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast_master.inputs import OperatorMessage
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec, training

FAIL_ON_ANY = wire.FailureRule(
    action=wire.FailureAction.FAIL_JOB, exit_codes=(0,), exit_codes_not_in=True
)


@pytest.mark.parametrize(("code", "reason"), [(-9, "ContainerStatusUnknown"), (-127, "Unknown")])
def test_what_a_reboot_leaves_is_a_preemption_and_no_exit_code(code: int, reason: str) -> None:
    """Silent first; then its node is back and says what it does not find any more."""
    job = training(3, failure_rules=(FAIL_ON_ANY,))
    job.raises = 0.0
    agent = job.agents[1]
    agent.crash(told=False)
    job.run(7.0)
    pod = dataclasses.replace(
        job.pods[1],
        pod_uid=agent.pod_uid,
        phase=wire.PodPhase.FAILED,
        exit_code=code,
        reason=reason,
    )
    job.take(OperatorMessage(pod))
    job.run(25.0)
    assert job.charges() == [wire.BudgetKind.PREEMPTIONS]
    assert not job.end


def test_a_container_that_its_kubelet_lost_is_a_preemption() -> None:
    """It starts again in its pod; what it is said to have ended with is made up."""
    job = training(3, min_replicas=1, failure_rules=(FAIL_ON_ANY,))
    job.raises = 0.0
    job.container_ends(1, reason="ContainerStatusUnknown")
    job.operator.observe(1)
    job.run(1.0)
    job.start_again(1)
    job.run(25.0)
    assert job.charges() == [wire.BudgetKind.PREEMPTIONS]
    assert not job.end


def test_an_eviction_for_a_limit_of_its_own_is_a_failure_without_an_exit_code() -> None:
    """The next pod would fill its disk too; but the 137 is the kubelet's."""
    job = training(3, failure_rules=(FAIL_ON_ANY,))
    job.raises = 0.0
    job.agents[1].crash(told=False)
    pod = dataclasses.replace(
        job.pods[1], phase=wire.PodPhase.FAILED, exit_code=-9, reason="Evicted"
    )
    job.take(OperatorMessage(pod))
    job.run(25.0)
    assert job.charges() == [wire.BudgetKind.FAILURES]
    assert not job.end


@pytest.mark.parametrize("reason", ["OutOfpods", "NodeShutdown", "ContainerStatusUnknown"])
def test_a_pod_that_its_node_turns_away_is_no_try_of_the_script(reason: str) -> None:
    """Nothing of it ran: a preemption, so that a bad node cannot end the job in six pods."""
    job = SteeredJob(job_spec())
    refused = wire.PodObservation(
        node_rank=0, pod_uid="p", name="p", phase=wire.PodPhase.FAILED, exit_code=1, reason=reason
    )
    job.take(OperatorMessage(refused))
    assert job.charges() == [wire.BudgetKind.PREEMPTIONS]
    told = job.texts("PodFailed")
    assert told == [f"p of node 0 failed ({reason}) before its agent joined"]


def test_pods_that_every_node_turns_away_end_the_job_by_the_preemption_budget() -> None:
    """A job that cannot begin does not try for ever."""
    job = SteeredJob(job_spec(budgets=(wire.Budget(kind=wire.BudgetKind.PREEMPTIONS, limit=0),)))
    refused = wire.PodObservation(
        node_rank=0,
        pod_uid="p",
        name="p",
        phase=wire.PodPhase.FAILED,
        exit_code=1,
        reason="OutOfcpu",
    )
    job.take(OperatorMessage(refused))
    job.run(1.0)
    assert job.end == "PreemptionBudgetExhausted"
