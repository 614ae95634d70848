"""Slow nodes under mode Act: out at a barrier, on an avoided host, without a step done twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from holdfast_master.inputs import OperatorMessage
from holdfast_master.policies.straggler import exclusion
from holdfast_wire.messages import HealthMode, HealthPolicy, StragglerPolicy
from holdfast_wire.reasons import EventReason
from simulation.steered.job import SteeredJob
from simulation.steered.samples import Sampler
from simulation.steered.without_sdk import without_sdk

Start = Callable[..., SteeredJob]

ACT = HealthPolicy(
    straggler=StragglerPolicy(
        mode=HealthMode.ACT, slowdown_percent=10, window_steps=5, votes=3, votes_out_of=5
    )
)
REPORT = HealthPolicy(
    straggler=dataclasses.replace(ACT.straggler, mode=HealthMode.REPORT)  # type: ignore[type-var]
)


def _redone(job: SteeredJob) -> list[int]:
    return [item.steps_redone for item in job.core.goodput(job.moment()).incidents]


def _slow(job: SteeredJob, node: int, excess: float = 0.05) -> Sampler:
    """Have a node become slow after a usual past, until the master has judged it."""
    sampled = Sampler(job)
    for _ in range(10):
        sampled.steps(20)
    sampled.steps(20, {node: excess})
    return sampled


def _with_standby(training: Start, **changes: object) -> SteeredJob:
    job = training(3, standbys=1, health=ACT, min_replicas=3, **changes)
    job.add_agent(3)
    job.run(1.0)
    for rank in range(4):
        job.pods[rank] = dataclasses.replace(job.pods[rank], node=f"gpu-{rank}")
        job.take(OperatorMessage(job.pods[rank]))
    return job


def test_a_standby_takes_the_place_of_a_slow_node(training: Start) -> None:
    """No step is done twice, nothing is charged, and another pod is asked for on another host."""
    job = _with_standby(training)
    before = job.agents[1].pod_uid
    sampled = _slow(job, 1)
    job.run(5.0)
    assert job.members == [0, 3, 2]
    assert _redone(job) == [0]
    assert "BarrierReached" in job.reasons()
    assert not job.charges()
    assert job.core.status(job.moment()).excluded_nodes == ("gpu-1",)
    (text,) = sampled.told(EventReason.STRAGGLER_EXCLUDED)
    assert "node 1 leaves" in text
    assert "a rescale costs" in text
    job.run(20.0)
    assert job.agents[1].pod_uid != before
    assert job.members == [0, 3, 2]


def test_nodes_on_the_host_of_a_slow_node_stay(training: Start) -> None:
    """They are judged by themselves; only new pods avoid the host."""
    job = _with_standby(training)
    for rank in (1, 2):
        job.pods[rank] = dataclasses.replace(job.pods[rank], node="shared")
        job.take(OperatorMessage(job.pods[rank]))
    _slow(job, 1)
    job.run(5.0)
    assert job.members == [0, 3, 2]
    assert job.reasons().count("NodeDraining") == 1
    assert job.core.status(job.moment()).excluded_nodes == ("shared",)


def test_the_world_shrinks_where_that_is_faster(training: Start) -> None:
    """Four nodes at a third of their pace are slower than three at their own."""
    job = training(4, min_replicas=2, health=ACT)
    job.replaces = False
    _slow(job, 1, excess=0.2)
    job.run(5.0)
    assert job.members == [0, 2, 3]
    assert _redone(job) == [0]


@pytest.mark.parametrize(
    ("least", "excess", "because"),
    [(3, 0.3, "fewer than the 3 nodes that the job needs"), (2, 0.02, "a rescale costs")],
)
def test_a_slow_node_stays_where_nobody_gains(
    training: Start, least: int, excess: float, because: str
) -> None:
    """For lack of room, or of a gain: people are told once, and training goes on."""
    job = training(3, min_replicas=least, max_replicas=3, health=ACT)
    sampled = _slow(job, 1, excess)
    for _ in range(5):
        sampled.steps(20, {1: excess})
    (text,) = sampled.told(EventReason.STRAGGLER_KEPT)
    assert text.startswith("node 1 stays: ")
    assert because in text
    assert job.members == [0, 1, 2]
    assert job.core.status(job.moment()).round == 1
    assert not sampled.told(EventReason.STRAGGLER_EXCLUDED)


def test_a_script_without_the_sdk_would_do_its_steps_again(
    training: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot stop at a step: what it has trained counts against the gain."""
    without_sdk(monkeypatch)
    job = training(3, standbys=1, health=ACT, min_replicas=3)
    job.add_agent(3)
    job.run(500.0)
    sampled = _slow(job, 1)
    (text,) = sampled.told(EventReason.STRAGGLER_KEPT)
    assert "the script does not use the SDK" in text
    assert job.members == [0, 1, 2]


def test_report_only_says_it(training: Start) -> None:
    """The slow node stays although a standby is warm."""
    job = training(3, standbys=1, health=REPORT)
    job.add_agent(3)
    job.run(1.0)
    sampled = _slow(job, 1)
    job.run(5.0)
    assert sampled.told(EventReason.STRAGGLER_FOUND)
    assert job.members == [0, 1, 2]


def test_no_more_nodes_leave_than_the_cap_allows(
    training: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new master counts those that left under the one before; people are told why one stays."""
    monkeypatch.setattr(exclusion, "CAP_NODES", 1)
    job = _with_standby(training)
    _slow(job, 1)
    job.run(25.0)
    assert job.members == [0, 3, 2]
    job.kill_master()
    job.run(0.5)
    job.start_master()
    job.run(20.0)
    sampled = _slow(job, 2)
    job.run(5.0)
    assert job.members == [0, 3, 2]
    (text,) = sampled.told(EventReason.STRAGGLER_KEPT)
    assert text.startswith("node 2 stays: 1 node left for being slow within 6 h, and no more may")


@pytest.mark.parametrize("after", [0.0, 0.005, 0.3, 2.0])
def test_a_new_master_goes_on_with_an_exclusion(training: Start, after: float) -> None:
    """From its journal: one departure, one host, a new pod, no step lost."""
    job = _with_standby(training)
    before = job.agents[1].pod_uid
    sampled = Sampler(job)
    for _ in range(10):
        sampled.steps(20)
    sampled.steps(20, {1: 0.05}, wait=0.0)
    job.run(after)
    while not sampled.told(EventReason.STRAGGLER_EXCLUDED):
        job.run(0.005)
    job.kill_master()
    job.run(0.5)
    job.start_master()
    job.run(30.0)
    assert sorted(job.members) == [0, 2, 3]
    assert job.agents[1].pod_uid != before
    assert job.reasons().count("StragglerExcluded") == 1
    assert job.reasons().count("NodeExcluded") == 1
    assert job.reasons().count("NodeDraining") == 1
    assert job.core.status(job.moment()).excluded_nodes == ("gpu-1",)
    assert _redone(job) == [0]
