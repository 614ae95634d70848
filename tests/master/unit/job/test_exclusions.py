"""Slow nodes under mode Act: out at a barrier, on an avoided host, without a step done twice."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast_master.inputs import OperatorMessage
from holdfast_master.policies.straggler import exclusion
from holdfast_wire.messages import ExcludeDecision, HealthMode, HealthPolicy, StragglerPolicy
from holdfast_wire.reasons import EventReason
from simulation.steered.job import SteeredJob, training
from simulation.steered.samples import Sampler
from simulation.steered.without_sdk import without_sdk

ACT = HealthPolicy(
    straggler=StragglerPolicy(
        mode=HealthMode.ACT, slowdown_percent=10, window_steps=5, votes=3, votes_out_of=5
    )
)
REPORT = HealthPolicy(
    straggler=dataclasses.replace(ACT.straggler, mode=HealthMode.REPORT)  # type: ignore[type-var]
)


def _slow(job: SteeredJob, node: int, excess: float = 0.05) -> Sampler:
    """Have a node become slow after a usual past, until the master has judged it."""
    sampled = Sampler(job)
    sampled.repeat(10)
    sampled.steps(20, {node: excess})
    return sampled


def _with_standby(**changes: Any) -> SteeredJob:
    job = training(3, standbys=1, health=ACT, min_replicas=3, **changes)
    job.add_agent(3)
    job.run(1.0)
    for rank in range(4):
        job.pods[rank] = dataclasses.replace(job.pods[rank], node=f"gpu-{rank}")
        job.take(OperatorMessage(job.pods[rank]))
    return job


def _replaced() -> SteeredJob:
    """One whose node 1 was slow, left for the standby, and has a new agent."""
    job = _with_standby()
    _slow(job, 1)
    job.run(25.0)
    return job


def test_a_standby_takes_the_place_of_a_slow_node() -> None:
    """No step is done twice, nothing is charged, and another pod is asked for on another host."""
    job = _with_standby()
    before = job.agents[1].pod_uid
    sampled = _slow(job, 1)
    job.run(5.0)
    assert job.members == [0, 3, 2]
    assert job.redone == [0]
    assert "BarrierReached" in job.reasons()
    assert not job.charges()
    assert job.status.excluded_nodes == ("gpu-1",)
    (text,) = sampled.job.texts(EventReason.STRAGGLER_EXCLUDED)
    assert "node 1 leaves" in text
    assert "a rescale costs" in text
    job.run(20.0)
    assert job.agents[1].pod_uid != before
    assert job.members == [0, 3, 2]


def test_nodes_on_the_host_of_a_slow_node_stay() -> None:
    """They are judged by themselves; only new pods avoid the host."""
    job = _with_standby()
    for rank in (1, 2):
        job.pods[rank] = dataclasses.replace(job.pods[rank], node="shared")
        job.take(OperatorMessage(job.pods[rank]))
    _slow(job, 1)
    job.run(5.0)
    assert job.members == [0, 3, 2]
    assert job.reasons().count("NodeDraining") == 1
    assert job.status.excluded_nodes == ("shared",)


def test_the_world_shrinks_where_that_is_faster() -> None:
    """Four nodes at a third of their pace are slower than three at their own."""
    job = training(4, min_replicas=2, health=ACT, replaces=False)
    _slow(job, 1, excess=0.2)
    job.run(5.0)
    assert job.members == [0, 2, 3]
    assert job.redone == [0]


@pytest.mark.parametrize(
    ("least", "excess", "because"),
    [(3, 0.3, "fewer than the 3 nodes that the job needs"), (2, 0.02, "a rescale costs")],
)
def test_a_slow_node_stays_where_nobody_gains(least: int, excess: float, because: str) -> None:
    """For lack of room, or of a gain: people are told once, and training goes on."""
    job = training(3, min_replicas=least, max_replicas=3, health=ACT)
    sampled = _slow(job, 1, excess)
    sampled.repeat(5, slow={1: excess})
    (text,) = sampled.job.texts(EventReason.STRAGGLER_KEPT)
    assert text.startswith("node 1 stays: ")
    assert because in text
    assert job.members == [0, 1, 2]
    assert job.status.round == 1
    assert not sampled.job.texts(EventReason.STRAGGLER_EXCLUDED)


def test_a_script_without_the_sdk_would_do_its_steps_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot stop at a step: what it has trained counts against the gain."""
    without_sdk(monkeypatch)
    job = training(3, standbys=1, health=ACT, min_replicas=3)
    job.add_agent(3)
    job.run(500.0)
    sampled = _slow(job, 1)
    (text,) = sampled.job.texts(EventReason.STRAGGLER_KEPT)
    assert "the script does not use the SDK" in text
    assert job.members == [0, 1, 2]


def _after(job: SteeredJob, slow: dict[int, float], windows: int = 6) -> Sampler:
    """Let the world that follows do windows of steps, its nodes slow by so much."""
    sampled = Sampler(job)
    sampled.repeat(windows, 5, slow=slow)
    return sampled


def test_slowness_that_goes_with_a_rank_is_no_node_s() -> None:
    """The successor is as slow: strike and exclusion are taken back, nobody else leaves for it."""
    job = _replaced()
    assert job.members == [0, 3, 2]
    assert [one.host for one in job.state.strikes if not one.withdrawn] == ["gpu-1"]
    sampled = _after(job, {3: 0.05})
    (text,) = sampled.job.texts(EventReason.STRAGGLER_CLEARED)
    assert text.startswith("rank 1 is slow on node 3 as it was on node 1: ")
    assert job.status.excluded_nodes == ()
    assert not [one for one in job.state.strikes if not one.withdrawn]
    assert job.refold().straggler_trials == job.state.straggler_trials
    sampled.repeat(8, 5)
    sampled = _after(job, {3: 0.3}, 8)
    assert "was as slow on another node" in sampled.job.texts(EventReason.STRAGGLER_KEPT)[-1]
    assert len(sampled.job.texts(EventReason.STRAGGLER_EXCLUDED)) == 1
    assert len(sampled.job.texts(EventReason.STRAGGLER_CLEARED)) == 1


def test_an_operator_that_was_away_hears_that_an_exclusion_is_lifted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the exclusion from before; it would avoid the host as long as the job lives."""
    job = _replaced()
    job.operator.leave()
    assert _after(job, {3: 0.05}).job.texts(EventReason.STRAGGLER_CLEARED)
    said: list[object] = []
    monkeypatch.setattr(job.operator, "told", lambda _, response: said.append(response.message))
    job.operator.come_back()
    job.run(1.0)
    (lifted,) = [one for one in said if isinstance(one, ExcludeDecision)]
    assert (lifted.node, lifted.lifted) == ("gpu-1", True)


def test_own_work_that_begins_later_is_no_node_s_either() -> None:
    """The script does its steps again, and is as slow from the same step on."""
    job = _replaced()
    sampled = _after(job, {}, 10)
    assert not sampled.job.texts(EventReason.STRAGGLER_CLEARED)
    sampled = _after(job, {3: 0.05})
    assert sampled.job.texts(EventReason.STRAGGLER_CLEARED)
    assert job.members == [0, 3, 2]


def test_a_node_that_was_slow_stays_excluded() -> None:
    """Its successor is as fast as the others."""
    job = _replaced()
    sampled = _after(job, {}, 10)
    assert not sampled.job.texts(EventReason.STRAGGLER_CLEARED)
    assert job.status.excluded_nodes == ("gpu-1",)


def test_the_first_rank_alone_may_log_and_gather() -> None:
    """Its node stays, and nothing is held against the host: the next node would have that work."""
    job = _with_standby()
    sampled = _slow(job, 0, 0.3)
    assert sampled.job.texts(EventReason.STRAGGLER_FOUND)
    (text,) = sampled.job.texts(EventReason.STRAGGLER_KEPT)
    assert "rank 0 alone is slow, and may log, gather or save" in text
    assert not sampled.job.texts(EventReason.STRAGGLER_EXCLUDED)
    assert not job.state.strikes


def test_steps_that_the_last_stop_lost_count_as_a_cost() -> None:
    """A script that saves nothing at a stop begins anew: the next node stays where that costs more.

    Before the first stop nobody knows, so what was trained counts until a checkpoint is seen.
    """
    job = _with_standby()
    _slow(job, 1)
    while "BarrierReached" not in job.reasons():
        job.run(0.05)
    job.training.saved = 0
    job.run(25.0)
    assert job.members == [0, 3, 2]
    assert job.redone[0] > 10
    job.run(400.0)
    sampled = _slow(job, 2)
    (text,) = sampled.job.texts(EventReason.STRAGGLER_KEPT)
    assert "had to be done again after the last stop" in text
    assert job.members == [0, 3, 2]


def test_a_script_that_nobody_has_seen_save_may_lose_all_it_did() -> None:
    """Until its first stop: the SDK alone saves nothing."""
    job = _with_standby()
    job.run(500.0)
    (text,) = _slow(job, 1).job.texts(EventReason.STRAGGLER_KEPT)
    assert "nobody has seen the script save" in text


def test_report_only_says_it() -> None:
    """The slow node stays although a standby is warm."""
    job = training(3, standbys=1, health=REPORT)
    job.add_agent(3)
    job.run(1.0)
    sampled = _slow(job, 1)
    job.run(5.0)
    assert sampled.job.texts(EventReason.STRAGGLER_FOUND)
    assert job.members == [0, 1, 2]


def test_no_more_nodes_leave_than_the_cap_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new master counts those that left under the one before; people are told why one stays."""
    monkeypatch.setattr(exclusion, "CAP_NODES", 1)
    job = _replaced()
    assert job.members == [0, 3, 2]
    job.restart_master(0.5)
    job.run(20.0)
    sampled = _slow(job, 2)
    job.run(5.0)
    assert job.members == [0, 3, 2]
    (text,) = sampled.job.texts(EventReason.STRAGGLER_KEPT)
    assert text.startswith("node 2 stays: 1 node left for being slow within 6 h, and no more may")


@pytest.mark.parametrize("after", [0.0, 0.005, 0.3, 2.0])
def test_a_new_master_goes_on_with_an_exclusion(after: float) -> None:
    """From its journal: one departure, one host, a new pod, no step lost."""
    job = _with_standby()
    before = job.agents[1].pod_uid
    sampled = Sampler(job)
    sampled.repeat(10)
    sampled.steps(20, {1: 0.05}, wait=0.0)
    job.run(after)
    while not sampled.job.texts(EventReason.STRAGGLER_EXCLUDED):
        job.run(0.005)
    job.restart_master(0.5)
    job.run(30.0)
    assert sorted(job.members) == [0, 2, 3]
    assert job.agents[1].pod_uid != before
    assert job.reasons().count("StragglerExcluded") == 1
    assert job.reasons().count("NodeExcluded") == 1
    assert job.reasons().count("NodeDraining") == 1
    assert job.status.excluded_nodes == ("gpu-1",)
    assert job.redone == [0]
