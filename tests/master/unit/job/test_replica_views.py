"""Replicas as people and programs see them: who is in step, and how much a loss has stopped."""

from __future__ import annotations

import pytest

from holdfast_wire import messages as wire
from holdfast_wire.messages import GoodputClass, ReplicaState
from simulation.steered.job import SteeredJob, job_spec
from simulation.steered.replicas import hold_store, replicated, stands, until_broken


def states(job: SteeredJob) -> dict[int, ReplicaState]:
    """State of each replica, by number."""
    return {one.number: one.state for one in job.core.replicas(job.moment())}


def by_node(job: SteeredJob) -> dict[int, tuple[int, ReplicaState]]:
    """Replica and its state, by node rank."""
    found = job.core.nodes(job.moment())
    return {one.node_rank: (one.replica, one.replica_state) for one in found}


def test_each_replica_has_its_nodes_its_round_and_its_step() -> None:
    """Two replicas of two nodes, of which one began anew in a later round."""
    job = replicated(4, 2)
    job.agents[2].crash_worker()
    job.run(10.0)
    first, second = job.core.replicas(job.moment())
    assert (first.number, first.node_ranks, first.round, first.ranks) == (1, (0, 1), 1, 2)
    assert (second.number, second.node_ranks, second.round, second.ranks) == (3, (2, 3), 2, 2)
    assert {first.state, second.state} == {ReplicaState.IN_STEP}
    assert abs(first.step - second.step) < 5
    assert second.step > 50


def test_a_job_without_replicas_has_none_to_show() -> None:
    """Its status says so, and its nodes are in no replica."""
    job = SteeredJob(job_spec(replicas=2))
    job.add_agents(2)
    job.run_until("TRAINING")
    assert job.core.replicas(job.moment()) == ()
    assert job.status.wanted_replicas == job.status.ranks_in_step == 0
    assert set(by_node(job).values()) == {(0, ReplicaState.UNSPECIFIED)}
    assert "in step" not in job.status.text


def test_while_one_replica_begins_anew_the_others_are_in_step() -> None:
    """Lost, starting, joining: at no time are the others shown as anything but in step."""
    job = replicated(3)
    job.run(5.0)
    job.agents[1].crash_worker()
    seen, sizes = set(), set()
    for _ in range(600):
        job.run(0.01)
        now = states(job)
        seen |= {state for number, state in now.items() if number not in {1, 3}}
        if 1 in now:
            assert (now[1], now[3]) == (ReplicaState.IN_STEP,) * 2, job.tale()
        status = job.status
        sizes.add((status.replicas_in_step, status.ranks_in_step, status.wanted_replicas))
        assert status.active_nodes >= 2
        assert status.world_size >= 2
        assert status.text
    assert {ReplicaState.STARTING, ReplicaState.IN_STEP} <= seen, seen
    assert {(2, 2, 3), (3, 3, 3)} == sizes
    assert job.status.text == "3 of 3 replicas are in step"


def test_while_no_world_runs_the_replicas_that_train_on_are_shown() -> None:
    """The next world waits for a store: the job has two replicas in step, and one that is lost."""
    job = replicated(3)
    job.run(5.0)
    hold_store(job, 2)
    job.agents[2].crash_worker()
    until_broken(job)
    assert states(job)[3] is ReplicaState.LOST
    status = job.status
    assert (status.world_size, status.active_nodes, status.ranks_in_step) == (2, 2, 2)
    assert by_node(job)[0] == (1, ReplicaState.IN_STEP)
    assert by_node(job)[2] == (0, ReplicaState.UNSPECIFIED)
    assert status.samples_per_second >= 0.0
    assert status.step_seconds > 0.0


def test_a_replica_that_is_out_is_named_with_the_reason() -> None:
    """People read that two of three train, and which one stands still."""
    job = replicated(3)
    stands(job, 1)
    job.run(3.0)
    for rank in (0, 2):
        stands(job, rank)
    job.run(35.0)
    for rank in (0, 2):
        stands(job, rank, stuck=False)
    job.run(3.0)
    assert states(job)[2] is ReplicaState.FROZEN, job.tale()
    assert job.status.text == "2 of 3 replicas are in step; replica 2 stands still and is out"
    assert (job.status.world_size, job.status.ranks_in_step) == (3, 2)
    assert by_node(job)[1] == (2, ReplicaState.FROZEN)
    hang = job.core.health(job.moment()).hang
    assert hang is not None
    assert (hang.cause, hang.nodes) == ("frozen", (1,))
    assert hang.seconds > 30.0
    assert job.status.health is wire.HealthReason.HANG
    assert job.status.health_text == "replica 2 stands still; the others go on"


def test_replicas_without_a_roster_are_alone() -> None:
    """They train, and nothing joins them."""
    job = SteeredJob(job_spec(replicas=2, nodes_per_replica=1, min_replicas=1))
    for agent in job.add_agents(2):
        agent.follows_rosters = False
    job.run_until("TRAINING")
    job.run(2.0)
    assert set(states(job).values()) == {ReplicaState.ALONE}
    assert job.status.text == "0 of 2 replicas are in step; replicas 1, 2 train alone"


def test_an_incident_says_how_much_of_the_job_it_stopped() -> None:
    """One of three replicas, with the others' number, in its facts and in its events."""
    job = replicated(3)
    job.run(5.0)
    job.agents[1].crash_worker()
    job.run(30.0)
    (fact,) = job.incidents
    assert (fact.lost_replicas, fact.going_replicas) == ((2,), 2)
    (opened,) = job.texts("IncidentOpened")
    assert opened.endswith("; replica 2 is lost, 2 other replicas train on")
    (closed,) = job.texts("IncidentClosed")
    assert "; its own next step after " in closed
    assert "2 other replicas train on" in closed
    assert job.texts("WorldAssigned")[-1] == (
        "round 2 starts: 1 replica, 1 node, 1 process; 2 replicas train on"
    )
    assert job.texts("WorldTraining")[-1].startswith("round 2: 1 new replica trains")


def test_an_incident_of_all_replicas_stops_the_job() -> None:
    """A second loss before the first is mended: nobody is left who trains on."""
    job = replicated(2)
    job.run(5.0)
    for agent in job.agents.values():
        agent.crash_worker()
    job.run(30.0)
    fact = job.incidents[-1]
    assert (fact.lost_replicas, fact.going_replicas) == ((1, 2), 0), job.tale()
    assert "; next step after " in job.texts("IncidentClosed")[-1]


def test_an_incident_of_one_world_names_no_replica() -> None:
    """Its texts are those of a job without replicas."""
    job = SteeredJob(job_spec(replicas=2))
    job.add_agents(2)
    job.run_until("TRAINING")
    job.run(5.0)
    job.agents[1].crash_worker()
    job.run(30.0)
    assert job.incidents[-1].lost_replicas == ()
    assert "replica" not in job.texts("IncidentOpened")[-1] + job.texts("WorldAssigned")[-1]


@pytest.mark.parametrize("guesses_after", [None, 8.0], ids=["steps reported", "steps guessed"])
def test_a_lost_replica_costs_its_own_nodes_time_alone(guesses_after: float | None) -> None:
    """The others trained: nothing of theirs is downtime, with and without the SDK."""
    job = SteeredJob(job_spec(replicas=3, nodes_per_replica=1, min_replicas=1))
    for agent in job.add_agents(3, sdk=guesses_after is None):
        agent.guesses_after = guesses_after
    job.run_until("TRAINING")
    job.run(20.0)
    before = lost_time(job)
    job.agents[1].crash_worker()
    job.run(40.0)
    after = lost_time(job)
    assert after[1] > before[1]
    assert (after[0], after[2]) == (before[0], before[2]), job.tale()


def lost_time(job: SteeredJob) -> dict[int, int]:
    """Microseconds of each node that were neither productive nor a checkpoint."""
    kept = {GoodputClass.PRODUCTIVE, GoodputClass.CHECKPOINT}
    totals = job.core.job.ledger.totals(job.core.job.clock.micros)
    return {
        rank: sum(spent for kind, spent in classes.items() if kind not in kept)
        for rank, classes in totals.items()
    }


def test_a_slow_import_is_no_replica_that_trains_alone() -> None:
    """Its script has not come to its roster: nobody is warned before its first step."""
    job = SteeredJob(job_spec(replicas=2, nodes_per_replica=1, min_replicas=1))
    for agent in job.add_agents(2, sdk=False):
        agent.follows_rosters = False
        agent.guesses_after = 20.0
    job.run_until("TRAINING")
    job.run(5.0)
    assert "StepsUnknown" in job.reasons()
    assert "ReplicaAlone" not in job.reasons()
    job.run(40.0)
    assert len(job.texts("ReplicaAlone")) == 1


def test_a_restored_incident_keeps_what_it_has_stopped() -> None:
    """The next master closes it with the replicas that its journal names."""
    job = replicated(3)
    job.run(5.0)
    job.agents[1].crash_worker()
    job.run_until("STARTING")
    job.kill_master()
    job.run(30.0)
    assert [(one.lost_replicas, one.going_replicas) for one in job.incidents] == [((2,), 2)]


def test_health_says_which_replicas_are_compared() -> None:
    """It is no lack of collectives; ranks count within a replica, which is named."""
    policy = wire.StragglerPolicy(
        mode=wire.HealthMode.REPORT, window_steps=50, votes=3, votes_out_of=5
    )
    hang = wire.HangPolicy(mode=wire.HealthMode.REPORT, min_seconds=300.0)
    job = replicated(2, health=wire.HealthPolicy(straggler=policy, hang=hang))
    job.run(5.0)
    found = job.core.health(job.moment())
    assert "replicas are compared where they train in step" in found.not_judged
    assert [(one.replica, one.rank) for one in found.ranks] == [(1, 0), (2, 0)]
    assert job.status.health is wire.HealthReason.AS_EXPECTED
    assert found.hang is None
