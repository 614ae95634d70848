"""Nodes that are checked before they join: orders, verdicts, what follows under each mode."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from holdfast_master.job.health import preflight
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason
from holdfast_wire.resources import Resource
from simulation.steered.job import SteeredJob, job_spec
from simulation.steered.samples import Sampler

SLOW = {Resource.CPU_MATMUL: 0.3, Resource.LINK_BANDWIDTH: 10.0}
HEALTHY = {Resource.CPU_MATMUL: 1.0, Resource.LINK_BANDWIDTH: 10.0}


def health(
    mode: wire.HealthMode = wire.HealthMode.REPORT, seconds: float = 300.0
) -> wire.HealthPolicy:
    """A policy that checks nodes."""
    preflight = wire.PreflightPolicy(mode=mode, network_check=True, timeout_seconds=seconds)
    return wire.HealthPolicy(preflight=preflight)


def started(nodes: int = 3, *, operator: bool = True, **changes: object) -> SteeredJob:
    """A job whose nodes are all there at once, and not checked yet."""
    spec = job_spec(**{"replicas": nodes, "health": health(), **changes})
    return SteeredJob(spec, operator_up=operator)


def ordered(job: SteeredJob) -> list[tuple[int, wire.CheckRole]]:
    """Node rank and part of each order so far."""
    return [(node, one.role) for node, one in job.sent if isinstance(one, wire.CheckNode)]


def worlds(job: SteeredJob) -> list[list[int]]:
    """Node ranks of each world so far that was assigned."""
    texts = job.texts(EventReason.WORLD_DECIDED)
    return [[int(rank) for rank in re.findall(r"\d+", text.split(";")[0])[1:]] for text in texts]


def verdicts(job: SteeredJob) -> dict[int, str]:
    """What people are shown about each node."""
    return {node.node_rank: node.preflight for node in job.core.nodes(job.moment())}


def test_nobody_is_checked_by_default() -> None:
    """Neither without a policy nor with mode Disabled."""
    for policy in (None, health(wire.HealthMode.DISABLED)):
        job = started(health=policy)
        job.add_agents(3)
        job.run_until("TRAINING")
        assert not ordered(job)
        assert set(verdicts(job).values()) == {""}


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_a_slow_node_is_named_and_joins_under_report(nodes: int) -> None:
    """The first world has all nodes, none of them unchecked, and people know the slow one."""
    job = started(nodes)
    job.add_agents(nodes)
    job.agents[1].checked = dict(SLOW)
    job.run(2.0)
    assert set(verdicts(job).values()) == {"checking"}
    assert not job.members
    job.run_until("TRAINING")
    assert sorted(job.members) == list(range(nodes))
    assert [node for node, verdict in verdicts(job).items() if verdict == "slow"] == [1]
    (text,) = job.texts(EventReason.PREFLIGHT_FAILED)
    assert text.startswith("node 1 is slow: cpu matmul is 0.3 TFLOP/s, 30% of")
    assert (0, wire.CheckRole.ALONE) in ordered(job)
    status = job.status
    assert status.health is wire.HealthReason.PREFLIGHT_FAILED
    assert status.health_text.startswith("node 1 is slow")


def test_a_node_with_a_slow_link_is_named_after_pairs() -> None:
    """Each of them is as fast as the others by itself."""
    job = started(5)
    job.add_agents(5)
    job.agents[3].checked = HEALTHY | {Resource.LINK_BANDWIDTH: 1.0}
    job.run_until("TRAINING", limit=120.0)
    serving = {node for node, role in ordered(job) if role is wire.CheckRole.SERVE}
    joining = {node for node, role in ordered(job) if role is wire.CheckRole.JOIN}
    assert serving
    assert joining
    (text,) = job.texts(EventReason.PREFLIGHT_FAILED)
    assert text.startswith("node 3 is slow: link bandwidth")


def test_under_act_a_bad_node_is_replaced_and_its_host_avoided() -> None:
    """It never joins; the one that comes instead is checked by itself, and does."""
    job = started(3, health=health(wire.HealthMode.ACT))
    job.add_agents(3)
    job.agents[2].checked = dict(SLOW)
    bad = job.agents[2].agent_id
    job.run_until("TRAINING")
    job.run(30.0)
    assert sorted(job.members) == [0, 1, 2]
    assert job.agents[2].agent_id != bad
    assert verdicts(job) == {0: "healthy", 1: "healthy", 2: "healthy"}
    assert [pod for _, pod, _, _ in job.assignments].count(2) == 1
    assert "k8s-2" in job.state.excluded
    (host,) = job.core.history(job.moment())
    assert (host.host, host.avoided) == ("k8s-2", "node 2 failed the check there")
    assert job.texts(EventReason.REPLACE_REQUESTED)


def test_under_act_too_few_nodes_are_worse_than_a_slow_one() -> None:
    """Nobody makes another pod, and the job needs both."""
    job = started(2, health=health(wire.HealthMode.ACT), operator=False)
    job.add_agents(2)
    job.agents[1].checked = dict(SLOW)
    job.run_until("TRAINING")
    assert sorted(job.members) == [0, 1]
    (text,) = job.texts(EventReason.PREFLIGHT_FAILED)
    assert "it joins all the same" in text


def test_a_silent_node_is_faulty_and_holds_nobody_up_for_longer_than_the_time() -> None:
    """The others are healthy, and the world begins when the time for all checks is over."""
    job = started(3, health=health(wire.HealthMode.ACT, seconds=20.0), operator=False)
    job.add_agents(3)
    job.agents[1].checked = {}
    job.run_until("TRAINING", limit=40.0)
    assert sorted(job.members) == [0, 2]
    assert verdicts(job)[1] == "faulty"
    assert [node.unfit for node in job.core.nodes(job.moment())] == [False, True, False]
    assert "no answer" in job.texts(EventReason.PREFLIGHT_FAILED)[0]


def test_a_node_that_refuses_leaves_its_partner_without_blame_or_wait() -> None:
    """The partner gets no order, so it is not silent: both are undecided and join at once."""
    job = started(2, health=health(wire.HealthMode.ACT))
    job.add_agents(2)
    for agent in job.agents.values():
        agent.refuses = wire.CheckRole.SERVE
    job.run_until("TRAINING", limit=30.0)
    assert sorted(job.members) == [0, 1]
    assert not job.texts(EventReason.PREFLIGHT_FAILED)
    assert {wire.CheckRole.JOIN} & {role for _, role in ordered(job)} == set()
    undecided = [text for text in job.texts(EventReason.PREFLIGHT_PASSED) if "undecided" in text]
    assert len(undecided) == 2
    assert len([text for text in undecided if "ranks run on this node" in text]) == 1
    assert len([text for text in undecided if "its partner could not measure" in text]) == 1


def test_the_work_of_a_report_does_not_grow_with_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master looks at a few nodes for each report of a round, not at all of them."""
    looked = 0
    real = preflight._is_here

    def counted(*arguments: Any) -> bool:
        nonlocal looked
        looked += 1
        return real(*arguments)

    monkeypatch.setattr(preflight, "_is_here", counted)
    counts = []
    for nodes in (16, 128):
        looked = 0
        job = started(nodes)
        job.add_agents(nodes)
        job.run_until("TRAINING", limit=60.0)
        counts.append(looked / nodes)
    assert counts[1] < 4 * counts[0], counts


def test_where_no_node_answers_nobody_is_accused() -> None:
    """The cause is shared: all are undecided, and join once the time is over."""
    job = started(3, health=health(wire.HealthMode.ACT, seconds=20.0))
    for agent in job.add_agents(3):
        agent.checked = {}
    job.run_until("TRAINING", limit=40.0)
    assert set(verdicts(job).values()) == {"undecided"}
    assert not job.texts(EventReason.PREFLIGHT_FAILED)


def test_nodes_of_the_running_world_are_never_checked() -> None:
    """A newcomer is, against what its partners reached; it joins afterwards."""
    job = started(3)
    job.add_agents(3)
    job.run_until("TRAINING")
    job.sent.clear()
    job.operator.change(replicas=4)
    job.run(60.0)
    assert sorted(job.members) == [0, 1, 2, 3]
    assert {node for node, _ in ordered(job)} == {3}
    assert verdicts(job)[3] == "healthy"


def test_members_stay_when_checks_begin_to_be_wanted() -> None:
    """A mode that changes while the job trains interrupts nothing."""
    job = started(2, health=None)
    job.add_agents(2)
    job.run_until("TRAINING")
    job.operator.change(health=health(wire.HealthMode.ACT))
    job.run(30.0)
    assert not ordered(job)
    assert job.state.round == 1
    job.agents[1].crash_worker()
    job.run(20.0)
    assert sorted(job.members) == [0, 1]
    assert not ordered(job)


@pytest.mark.parametrize("after", [1.0, 2.5, 4.0])
def test_a_check_begins_anew_with_the_masters_successor(after: float) -> None:
    """Reports to the one before count for nothing, and no node joins unchecked."""
    job = started(3)
    job.add_agents(3)
    job.agents[1].checked = dict(SLOW)
    job.run(after)
    job.kill_master(1.0)
    job.run_until("TRAINING")
    assert sorted(job.members) == [0, 1, 2]
    assert verdicts(job) == {0: "healthy", 1: "slow", 2: "healthy"}


def test_verdicts_and_references_outlive_the_master() -> None:
    """Its successor checks nobody again, and compares a newcomer with what was learned."""
    job = started(3)
    job.add_agents(3)
    job.run_until("TRAINING")
    job.kill_master(1.0)
    job.run(15.0)
    job.sent.clear()
    assert verdicts(job) == dict.fromkeys(range(3), "healthy")
    job.add_agent(3, checked=dict(SLOW))
    job.operator.change(replicas=4)
    job.run(60.0)
    assert {node for node, _ in ordered(job)} == {3}
    assert verdicts(job)[3] == "slow"
    assert job.refold().reference_levels


def test_a_node_that_leaves_in_the_middle_holds_nobody_up() -> None:
    """The others are judged without it."""
    job = started(3)
    job.add_agents(3)
    job.agents[2].checked = {}
    job.run(2.0)
    job.agents[2].crash()
    job.run_until("TRAINING")
    # Of two nodes that are left, the figure of their one pair has nothing to be compared with.
    assert verdicts(job)[0] == "undecided"
    assert {0, 1} <= set(job.members)


def test_an_order_that_was_lost_with_the_stream_comes_again() -> None:
    """A blip in the middle of a round delays it, and nobody is accused."""
    job = started(3, health=health(seconds=60.0))
    job.add_agents(3)
    job.run(1.2)
    job.agents[1].cut_off()
    job.run(3.0)
    job.agents[1].reachable()
    job.run_until("TRAINING", limit=40.0)
    assert set(verdicts(job).values()) == {"healthy"}
    assert ordered(job).count((1, wire.CheckRole.ALONE)) >= 2


def slowed(least: int, mode: wire.HealthMode = wire.HealthMode.REPORT) -> SteeredJob:
    """A job with three checked nodes that trains, and node 1 was found slow in the world since."""
    straggler = wire.StragglerPolicy(
        mode=wire.HealthMode.REPORT, slowdown_percent=10, window_steps=5, votes=3, votes_out_of=5
    )
    job = started(3, health=replace(health(mode), straggler=straggler), min_replicas=least)
    job.add_agents(3)
    job.run_until("TRAINING")
    job.run(1.0)
    sampled = Sampler(job)
    sampled.repeat(10)
    sampled.steps(20, {1: 0.05})
    assert job.texts(EventReason.STRAGGLER_FOUND)
    job.sent.clear()
    return job


def test_a_straggler_is_checked_again_before_the_next_world() -> None:
    """Not before its world has ended, and nobody else is; it trains again once it is healthy."""
    job = slowed(3)
    job.run(20.0)
    assert not ordered(job)
    job.agents[2].crash_worker()
    job.run(30.0)
    assert sorted(job.members) == [0, 1, 2]
    assert ordered(job) == [(1, wire.CheckRole.ALONE)]
    text = job.texts(EventReason.PREFLIGHT_BEGUN)[-1]
    assert "node 1 is checked before it joins" in text
    assert "node 1 again: straggler since its last check" in text
    assert verdicts(job)[1] == "healthy"
    job.sent.clear()
    job.agents[2].crash_worker()
    job.run(30.0)
    assert not ordered(job), "nothing new speaks against it"


def test_the_others_train_without_a_suspect_node_until_its_check_is_over() -> None:
    """Where they are enough; then it joins them."""
    job = slowed(1)
    job.agents[2].crash_worker()
    job.run_until("TRAINING", limit=10.0)
    job.run(60.0)
    first = next(members for members in worlds(job) if 1 not in members)
    assert first == [0, 2]
    assert sorted(job.members) == [0, 1, 2]


def test_ranks_of_the_world_that_ended_are_stopped_before_a_suspect_is_checked() -> None:
    """They wait for the others in a collective: nothing can be measured beside them."""
    job = slowed(3)
    job.agents[2].crash_worker()
    job.run(30.0)
    to_it = [type(one) for rank, one in job.sent if rank == 1]
    assert to_it.index(wire.StopRound) < to_it.index(wire.CheckNode)
    assert verdicts(job)[1] == "healthy"


def test_a_suspect_that_was_away_is_told_to_end_its_ranks_when_it_is_back() -> None:
    """It missed the order to stop; its welcome names no round that it may keep."""
    job = slowed(3)
    job.agents[1].cut_off()
    job.agents[2].crash_worker()
    job.run(1.0)
    job.agents[1].reachable()
    job.run(30.0)
    (welcome,) = [one for rank, one in job.sent if rank == 1 and isinstance(one, wire.Welcome)]
    assert welcome.round == 0
    assert verdicts(job)[1] == "healthy"
    assert sorted(job.members) == [0, 1, 2]


def test_under_act_a_straggler_whose_hardware_is_slow_is_replaced() -> None:
    """The second check finds what the first did not."""
    job = slowed(1, wire.HealthMode.ACT)
    bad = job.agents[1].agent_id
    job.agents[1].checked = dict(SLOW)
    job.agents[2].crash_worker()
    job.run(60.0)
    assert sorted(job.members) == [0, 1, 2]
    assert job.agents[1].agent_id != bad
    assert "k8s-1" in job.state.excluded


def test_a_second_check_survives_the_master() -> None:
    """Its successor finds the reason in the journal."""
    job = slowed(3)
    job.agents[2].crash_worker()
    job.run(0.3)
    job.kill_master(1.0)
    job.sent.clear()
    job.run(40.0)
    assert sorted(job.members) == [0, 1, 2]
    assert (1, wire.CheckRole.ALONE) in ordered(job)
    assert verdicts(job)[1] == "healthy"


def test_what_spoke_against_a_host_outlives_the_master() -> None:
    """A failed check and crashes of processes are kept by host, and the worst host is first."""
    job = started(3)
    job.add_agents(3)
    job.agents[1].checked = dict(SLOW)
    job.run_until("TRAINING")
    job.run(5.0)
    for rank in (1, 2):
        job.agents[rank].crash_worker()
        job.run(20.0)
    job.kill_master(1.0)
    job.run(15.0)
    history = job.core.history(job.moment())
    assert [one.host for one in history] == ["k8s-1", "k8s-2"]
    assert [strike.cause for strike in history[0].strikes] == ["Preflight", "Failure"]
    assert [strike.node_rank for strike in history[0].strikes] == [1, 1]
    assert not history[1].suspect
