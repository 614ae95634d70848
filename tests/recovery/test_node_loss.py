"""Agents and whole nodes vanish, freeze, wake up, come back, and are replaced by standbys."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from agents.loop_script import loop_script
from holdfast_wire.messages import NodeState
from jobs.local_job import (
    STEPS,
    RunningJob,
    StartJob,
    alive,
    assert_same_curve,
    loss_lines,
    losses,
    slow,
)

pytestmark = [pytest.mark.train, pytest.mark.deadline]


def test_a_killed_agent_shrinks_the_world_and_its_successor_joins(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path
) -> None:
    """Kill -9 of any agent: a world of one goes on, a new agent joins, the losses stay the same."""
    job = start_job(slow(500), cold=True)
    before, log = job.wait_step(20), tmp_path / "loss.jsonl"
    for node in (1, 0):
        agent, seen = job.agent_pid(node), job.newest_event()
        ranks = [rank.pid for rank in job.nodes()[node].ranks]
        os.kill(agent, signal.SIGKILL)
        alone = job.wait_event("WorldAssigned", after=seen)
        assert alone.text.endswith("starts: 1 node, 1 process")
        job.wait_for("the old ranks are gone", lambda: not any(map(alive, ranks)))  # noqa: B023
        before = job.wait_step(before.step + 1, round_above=alone.round)
        assert before.world_size == 2
        assert any(line["round"] == alone.round for line in loss_lines(log)), "it did not go on"
    assert job.finish() == 0, job.evidence()
    assert_same_curve(losses(log), unbroken, STEPS)


@pytest.mark.extended(
    "a standby takes a place on real processes in another test",
    held_by=[
        "recovery/test_health_actions.py::test_a_standby_replaces_a_slow_node_without_a_step_done_twice",
        "master/unit/job/test_node_losses.py::test_a_standby_takes_the_vacant_place_at_once",
    ],
)
def test_a_standby_takes_the_place_of_a_lost_node(start_job: StartJob, tmp_path: Path) -> None:
    """With a warm standby the world keeps its size, and the standby takes the vacant rank."""
    job = start_job(script=loop_script(tmp_path, "--steps=100000"), minReplicas=2, standbys=1)
    before = job.wait_step(15)
    job.wait_for("a standby", lambda: NodeState.STANDBY in _states(job))
    lost = next(n for n in job.nodes().values() if n.state is NodeState.ACTIVE and n.group_rank)
    os.kill(lost.agent_pid, signal.SIGKILL)
    after = job.wait_step(before.step, round_above=before.round)
    assert after.world_size == 2
    nodes = job.nodes().values()
    active = {n.group_rank: n.node_rank for n in nodes if n.state is NodeState.ACTIVE}
    assert sorted(active) == [0, 1]
    assert active[1] != lost.node_rank


@pytest.mark.extended(
    "one real job: the decision is tested by itself",
    held_by=[
        "master/unit/job/test_node_losses.py::test_below_the_minimum_the_survivors_stop_and_wait",
        "recovery/test_killed_agents.py::test_a_sharded_world_that_waits_for_its_node_starts_from_memory",
    ],
)
def test_below_the_minimum_the_job_waits_and_goes_on(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path
) -> None:
    """Too few nodes: no world, until the replacement is there; then the same losses."""
    job = start_job(minReplicas=2)
    before = job.wait_step(20)
    os.kill(job.agent_pid(1), signal.SIGKILL)
    job.wait_event("WaitingForNodes", text="1 of at least 2")
    after = job.wait_step(21, round_above=before.round)
    assert after.world_size == 2
    assert job.finish() == 0, job.evidence()
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)


@pytest.mark.extended(
    "the same clock and reason in a cluster",
    held_by=[
        "operator/process/jobs/test_elastic.py::test_a_job_with_too_few_workers_waits_so_long_as_it_says",
        "master/unit/job/test_node_losses.py::test_below_the_minimum_the_survivors_stop_and_wait",
    ],
)
def test_below_the_minimum_for_too_long_fails_with_its_reason(
    start_job: StartJob, tmp_path: Path
) -> None:
    """A job without a replacement in time fails and says why."""
    job = start_job(
        script=loop_script(tmp_path, "--steps=100000"),
        minReplicas=2,
        elasticPolicy={"belowMinTimeoutSeconds": 1, "joinWindowSeconds": 0},
    )
    assert job.finish() == 1, job.evidence()
    assert "BelowMinReplicas" in job.output


def _states(job: RunningJob) -> list[NodeState]:
    return [node.state for node in job.nodes().values()]
