"""Agents and whole nodes vanish, freeze, wake up, come back, and are replaced by standbys."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from holdfast_cli.runner.processes import descendants
from holdfast_wire.messages import BudgetKind, NodeState
from local_job import (
    STEPS,
    RunningJob,
    StartJob,
    alive,
    assert_same_curve,
    loss_lines,
    losses,
)

pytestmark = pytest.mark.train


@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_agent_shrinks_the_world_and_its_successor_joins(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path, node: int
) -> None:
    """Kill -9 of any agent: a world of one goes on, a new agent joins, the losses stay the same."""
    job = start_job("--extra-work-ms=200")
    before = job.wait_step(20)
    agent = job.agent_pid(node)
    ranks = [rank.pid for rank in job.nodes()[node].ranks]
    os.kill(agent, signal.SIGKILL)
    shrunk = job.wait_step(21, round_above=before.round)
    assert shrunk.world_size == 1
    job.wait_for("the old ranks are gone", lambda: not any(map(alive, ranks)))
    grown = job.wait_step(22, round_above=shrunk.round)
    assert grown.world_size == 2
    assert job.finish() == 0, job.evidence()
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)


def test_a_frozen_agent_is_left_behind_and_its_ranks_are_dead_first(
    start_job: StartJob, tmp_path: Path
) -> None:
    """SIGSTOP of an agent: its lease ends its ranks before the smaller world starts.

    A failure is charged, also where its pod was deleted because of it.
    """
    job = start_job(steps=5000)
    before = job.wait_step(15)
    agent, rank = job.agent_pid(1), job.rank_pid(1)
    os.kill(agent, signal.SIGSTOP)
    job.wait_for("the frozen agent's rank is dead", lambda: not alive(rank), timeout_s=10)
    dead_at = time.time()
    shrunk = job.wait_step(before.step, round_above=before.round)
    assert shrunk.world_size == 1
    (decided,) = [e for e in job.events() if e.reason == "WorldDecided" and e.round == shrunk.round]
    assert dead_at < decided.unix_time, "the new round began before the old rank was dead"
    with contextlib.suppress(ProcessLookupError):
        os.kill(agent, signal.SIGCONT)
    grown = job.wait_step(before.step, round_above=shrunk.round)
    assert grown.world_size == 2
    job.wait_event("BudgetCharged")
    used = {budget.kind: budget.used for budget in job.status().budgets}
    assert used[BudgetKind.FAILURES] == 1
    rounds = [line["round"] for line in loss_lines(tmp_path / "loss.jsonl")]
    assert rounds == sorted(rounds), "an old round's rank wrote after a newer round had begun"


def test_a_node_frozen_whole_takes_no_step_after_it_wakes(
    start_job: StartJob, tmp_path: Path
) -> None:
    """Agent, zygote and ranks are stopped and continued: no step of the old round follows."""
    job = start_job(steps=5000)
    before = job.wait_step(15)
    node = job.agent_pid(0)
    tree = [node, *descendants(node)]
    for pid in tree:
        os.kill(pid, signal.SIGSTOP)
    shrunk = job.wait_step(before.step, round_above=before.round, timeout_s=120)
    assert shrunk.world_size == 1
    for pid in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    job.wait_for("the old ranks are gone", lambda: not any(map(alive, tree[2:])), timeout_s=20)
    rounds = [line["round"] for line in loss_lines(tmp_path / "loss.jsonl")]
    assert rounds == sorted(rounds), "an old round's rank wrote after a newer round had begun"


def test_a_standby_takes_the_place_of_a_lost_node(start_job: StartJob) -> None:
    """With a warm standby the world keeps its size, and the standby takes the vacant rank."""
    job = start_job(steps=5000, minReplicas=2, standbys=1)
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


def test_sigterm_of_an_agent_is_a_preemption_and_spends_no_failure(start_job: StartJob) -> None:
    """An agent that is told to end leaves at a boundary; the failure budget is untouched."""
    job = start_job(steps=5000)
    before = job.wait_step(15)
    os.kill(job.agent_pid(1), signal.SIGTERM)
    shrunk = job.wait_step(before.step, round_above=before.round)
    job.wait_step(shrunk.step, round_above=shrunk.round)
    job.wait_event("BudgetCharged")
    used = {budget.kind: budget.used for budget in job.status().budgets}
    assert used[BudgetKind.FAILURES] == 0
    assert used[BudgetKind.PREEMPTIONS] == 1


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


def test_below_the_minimum_for_too_long_fails_with_its_reason(start_job: StartJob) -> None:
    """When no replacement comes in time the job fails, and says why."""
    job = start_job(
        steps=5000,
        minReplicas=2,
        elasticPolicy={"belowMinTimeoutSeconds": 1, "joinWindowSeconds": 0},
    )
    assert job.finish() == 1, job.evidence()
    assert "BelowMinReplicas" in job.output


def _states(job: RunningJob) -> list[NodeState]:
    return [node.state for node in job.nodes().values()]
