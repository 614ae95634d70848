"""A job from its spec to its first step."""

from __future__ import annotations

import re

import pytest

from holdfast_master.inputs import Connected, Received
from holdfast_wire.messages import Hello, NodeState, Warmed
from holdfast_wire.reasons import PhaseReason
from simulation.steered.agent import SteeredAgent
from simulation.steered.job import SteeredJob, job_spec


def test_all_wanted_nodes_form_at_once() -> None:
    """Nobody waits for a window once everybody is there and warm."""
    job = SteeredJob(job_spec(join_window_seconds=300.0))
    job.add_agents(4)
    job.run_until("TRAINING", limit=2.0)
    assert job.members == [0, 1, 2, 3]
    places = {rank: world for _, rank, _, world in job.assignments}
    assert [places[rank].base_rank for rank in job.members] == [0, 1, 2, 3]
    assert {world.world_size for world in places.values()} == {4}
    assert {world.restart_count for world in places.values()} == {0}
    assert places[0].store_id
    assert not places[1].store_id


def test_unequal_nodes_have_contiguous_ranks() -> None:
    """base_rank is cumulative over unequal local world sizes."""
    job = SteeredJob(job_spec(replicas=3))
    for rank, local in enumerate((2, 1, 3)):
        job.add_agent(rank, local=local)
    job.run_until("TRAINING")
    places = {rank: world for _, rank, _, world in job.assignments}
    assert [(p.base_rank, p.local_world_size) for _, p in sorted(places.items())] == [
        (0, 2),
        (2, 1),
        (3, 3),
    ]
    assert {world.world_size for world in places.values()} == {6}


def test_the_join_window_lets_a_world_grow_before_it_starts() -> None:
    """Too few for all, enough for some: the window passes, then they go without the others."""
    job = SteeredJob(job_spec(join_window_seconds=5.0))
    job.add_agents(3)
    job.run(4.0)
    assert job.is_in("WAITING")
    assert job.status.reason == PhaseReason.JOIN_WINDOW
    job.run_until("TRAINING", limit=3.0)
    assert job.members == [0, 1, 2]


def slow_node(patch: pytest.MonkeyPatch, ready_after: float) -> SteeredJob:
    """A job of three nodes, the last of which imports for so long, s."""
    job = SteeredJob(job_spec(join_window_seconds=5.0, replicas=3))
    warmed = SteeredAgent._warmed

    def later(agent: SteeredAgent) -> None:
        if agent.rank == 2 and job.time.now < ready_after:
            job.time.after(0.1, agent._warmed)
        else:
            warmed(agent)

    patch.setattr(SteeredAgent, "_warmed", later)
    job.add_agents(3)
    return job


def test_a_node_that_joined_in_the_window_and_is_not_ready_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It imports for longer than the window: a world without it would soon be stopped to grow."""
    job = slow_node(monkeypatch, 8.0)
    job.run(7.9)
    assert job.is_in("WAITING")
    job.run_until("TRAINING", limit=2.0)
    assert job.members == [0, 1, 2]
    assert job.status.round == 1


def test_a_node_that_never_gets_ready_is_not_waited_for_longer_than_two_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others begin without it."""
    job = slow_node(monkeypatch, 1e9)
    job.run(10.0)
    assert job.is_in("WAITING")
    job.run_until("TRAINING", limit=2.5)
    assert job.members == [0, 1]


def test_below_the_minimum_nothing_starts() -> None:
    """One of two: the job says how long it still waits, and fails when its time is over."""
    job = SteeredJob(job_spec(below_min_timeout_seconds=20.0))
    job.add_agents(1)
    job.run(15.0)
    status = job.status
    assert (status.phase.name, status.reason) == ("WAITING", "WaitingForNodes")
    told = re.search(r"the job fails in (\S+) s \(belowMinTimeoutSeconds\)", status.text)
    assert told is not None, status.text
    assert 4.0 <= float(told[1]) <= 6.0
    job.run(4.0)
    assert job.is_in("WAITING")
    job.run(10.0)
    assert job.end == "BelowMinReplicas"
    assert "of at least 2 nodes" in job.status.text


def test_extra_nodes_stand_by() -> None:
    """Nobody is in the world beyond replicas."""
    job = SteeredJob(job_spec(replicas=2, standbys=1))
    job.add_agents(3)
    job.run_until("TRAINING")
    job.run(2.0)
    assert len(job.members) == 2
    states = [node.state for node in job.core.nodes(job.moment())]
    assert states.count(NodeState.STANDBY) == 1
    assert job.status.standby_nodes == 1


def test_a_first_node_without_a_store_gives_way() -> None:
    """A store that does not come in time makes another node the first."""
    job = SteeredJob(job_spec(replicas=2))
    first, _ = job.add_agents(2)
    first._store_ready = lambda store_id: None  # type: ignore[method-assign]
    job.run_until("TRAINING", limit=15.0)
    assert job.members == [1, 0]
    assert "StoreMissing" in job.reasons()


def test_a_store_that_cannot_start_is_not_waited_for() -> None:
    """An error moves the next node to the front at once, without the deadline."""
    job = SteeredJob(job_spec(replicas=2))
    job.store_failures = 1.0
    job.add_agents(2)
    job.run(1.0)
    assert job.is_in("FORMING")
    job.store_failures = 0.0
    job.run_until("TRAINING", limit=5.0)


def test_without_a_spec_nobody_is_assigned() -> None:
    """Agents are welcomed and wait."""
    job = SteeredJob(job_spec(generation=0, replicas=0))
    job.state.spec = None
    job.add_agents(2)
    job.run(2.0)
    assert job.is_in("WAITING")
    assert not job.assignments


def test_messages_of_unknown_streams_are_dropped() -> None:
    """A stream that ended, or never said hello, changes nothing."""
    job = SteeredJob(job_spec())
    assert job.take(Received(77, None, Warmed())) == []


def test_hellos_of_strangers_are_refused_with_the_field_and_its_value() -> None:
    """Another job's agent, no agent id, no processes: closed, and told in an event."""
    job = SteeredJob(job_spec())
    for session, hello in enumerate(
        (
            Hello(job_uid="other", agent_id="a", local_world_size=1),
            Hello(job_uid="uid-1", agent_id="", local_world_size=1),
            Hello(job_uid="uid-1", agent_id="a", local_world_size=0),
        )
    ):
        job.take(Connected(session, hello))
    texts = job.texts("NodeRefused")
    assert ["job_uid" in texts[0], "agent_id" in texts[1], "local_world_size" in texts[2]] == [
        True,
        True,
        True,
    ]
    assert not [node for node in job.core.nodes(job.moment()) if node.agent_id]


@pytest.mark.parametrize("before", ["no master", "its journal", "no journal"])
def test_a_job_that_no_agent_ever_joins_fails_in_time(before: str) -> None:
    """Also under a master that follows another and would wait for the nodes of a world before."""
    job = SteeredJob(job_spec(replicas=1, min_replicas=1, below_min_timeout_seconds=20.0))
    if before != "no master":
        job.restart_master(journal=before == "its journal")
    job.run(19.0)
    assert job.is_in("WAITING")
    job.run(2.0)
    assert job.end == "BelowMinReplicas"


def test_nodes_that_come_late_to_a_new_master_stop_the_time() -> None:
    """The timeout is for jobs that nobody joins, not for one whose nodes are back at last."""
    job = SteeredJob(job_spec(replicas=1, min_replicas=1, below_min_timeout_seconds=20.0))
    job.restart_master(journal=False)
    job.run(18.0)
    job.add_agents(1)
    job.run(30.0)
    assert job.is_in("TRAINING")
