"""A worker's container that its node starts again in the same pod: its memory is still there."""

from __future__ import annotations

import dataclasses

from holdfast_master.inputs import OperatorMessage
from holdfast_wire import messages as wire
from messages.restores import restore_request
from simulation.steered.job import SteeredJob, training

OLD, NEW = wire.CheckpointVersion(lineage=1, step=10), wire.CheckpointVersion(lineage=1, step=14)


def _restore(job: SteeredJob, *ranks: int) -> wire.RestorePlan | None:
    """Have each of these nodes ask with both versions in memory, and the older one on storage."""
    asked = restore_request(memory=(NEW, OLD), storage=(OLD,))
    for rank in ranks:
        job.say(rank, asked)
    origin = job.context.checkpoints.tracker.origin
    if origin is not None and not origin.go:
        for rank in ranks:
            job.say(rank, wire.RestorePlanVerified(plan_id=origin.plan_id))
        origin = job.context.checkpoints.tracker.origin
    return origin


def _round(job: SteeredJob) -> int:
    return job.status.round


def test_its_world_waits_for_it_and_starts_from_memory() -> None:
    """Nobody asks for a new pod, no smaller world is formed, and the charge says what happened."""
    job = training(3, min_replicas=1)
    _restore(job, 0, 1, 2)
    job.container_ends(1, reason="OOMKilled")
    job.operator.observe(1)
    job.run(4.0)
    assert job.is_in("WAITING")
    assert _round(job) == 1
    assert "started again" in job.status.text
    job.start_again(1)
    job.run(4.0)
    assert sorted(job.members) == [0, 1, 2]
    assert _round(job) == 2
    origin = _restore(job, 0, 1, 2)
    assert origin is not None
    assert (origin.version, origin.tier, origin.go) == (NEW, wire.Tier.MEMORY, True)
    (text,) = job.texts("CheckpointRestored")[1:]
    assert text.startswith("round 2 starts from step 14 in memory")
    job.run(20.0)
    assert job.charges() == [wire.BudgetKind.FAILURES]
    assert "ReplaceRequested" not in job.reasons()
    assert "OOMKilled" in job.incidents[-1].text


def test_an_agent_that_is_back_before_the_operator_tells_is_welcome() -> None:
    """Its pod is not made anew, and what the operator says later is blamed."""
    job = training(2, min_replicas=1)
    _restore(job, 0, 1)
    job.container_ends(1)
    job.start_again(1)
    job.run(3.0)
    assert _round(job) == 2
    assert "ReplaceRequested" not in job.reasons()
    job.operator.observe(1)
    job.run(20.0)
    assert _round(job) == 2
    assert job.incidents[-1].cause == "PodFailed"
    job.agents[1].blip()
    job.run(5.0)
    assert _round(job) == 2, "a blip of the newer agent is not the older one's end"


def test_a_world_without_checkpoints_does_not_wait() -> None:
    """There is nothing in that pod's memory that would be worth it."""
    job = training(3, min_replicas=1)
    job.container_ends(1)
    job.operator.observe(1)
    job.run(3.0)
    assert sorted(job.members) == [0, 2]
    job.start_again(1)
    job.run(20.0)
    assert sorted(job.members) == [0, 1, 2]
    assert "ReplaceRequested" not in job.reasons()


def test_a_pod_whose_agent_does_not_come_back_is_made_anew() -> None:
    """After 30 s; until then the others wait, then they go on without it."""
    job = training(3, min_replicas=1)
    _restore(job, 0, 1, 2)
    job.replaces = False
    job.container_ends(1)
    job.operator.observe(1)
    job.run(29.0)
    assert "ReplaceRequested" not in job.reasons()
    assert _round(job) == 1
    job.run(4.0)
    assert job.reasons().count("ReplaceRequested") == 1
    assert sorted(job.members) == [0, 2]


def test_a_pod_that_ends_while_it_is_waited_for_is_not_waited_for() -> None:
    """Evicted between two starts: the usual successor."""
    job = training(3, min_replicas=1)
    _restore(job, 0, 1, 2)
    job.container_ends(1)
    job.operator.observe(1)
    job.run(1.0)
    job.take(
        OperatorMessage(
            dataclasses.replace(job.pods[1], phase=wire.PodPhase.FAILED, reason="Evicted")
        )
    )
    job.run(2.0)
    assert sorted(job.members) == [0, 2]


def test_a_silent_agent_of_a_pod_that_started_again_long_ago_is_replaced() -> None:
    """Only an end that the agent has not outlived means that another one comes."""
    job = training(2)
    job.container_ends(1)
    job.operator.observe(1)
    job.run(1.0)
    job.start_again(1)
    job.run(20.0)
    job.replaces = False
    job.agents[1].cut_off()
    job.run(8.0)
    assert job.reasons().count("ReplaceRequested") == 1
