"""Replicas under local SGD: a loss restarts one of them, and a roster tells the others."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast_master.instructions import Reply
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec, started
from simulation.steered.replicas import (
    hold_store,
    newest_told,
    replicated,
    roster,
    rounds_of,
    say,
    seats,
    until_broken,
)


def test_replicas_begin_together_in_worlds_of_their_own() -> None:
    """Two replicas of two nodes: ranks count within a replica, and one roster names both."""
    job = replicated(4, 2)
    assert seats(job) == {1: [0, 1], 2: [2, 3]}
    places = {rank: assigned for _, rank, _, assigned in job.assignments}
    assert [places[rank].group_rank for rank in range(4)] == [0, 1, 0, 1]
    assert {one.world_size for one in places.values()} == {2}
    assert places[0].store_host == places[1].store_host != places[2].store_host
    assert places[0].world_hash != places[2].world_hash
    assert (roster(job).epoch, roster(job).replicas) == (1, (1, 2))
    for rank in range(4):
        assert newest_told(job, rank) == roster(job)


def test_a_crashed_worker_restarts_its_replica_alone() -> None:
    """The others keep their processes, hear of the loss, and then of the new replica."""
    job = replicated(4)
    before = rounds_of(job)
    job.agents[2].crash_worker()
    job.run(10.0)
    after = rounds_of(job)
    assert {rank for rank in before if before[rank] != after[rank]} == {2}
    assert seats(job) == {1: [0], 2: [1], 4: [3], 5: [2]}
    assert roster(job).replicas == (1, 2, 4, 5)
    told = [one.roster.replicas for one in job.agents[0].rosters if one.roster]
    assert told == [(1, 2, 3, 4), (1, 2, 4), (1, 2, 4, 5)]
    assert newest_told(job, 2) == roster(job)


def test_survivors_hear_of_a_loss_at_once() -> None:
    """They may wait for the lost replica in a sync: it is out before anything else is decided."""
    job = replicated(4)
    job.agents[1].crash_worker()
    job.run(0.2)
    assert newest_told(job, 0) is not None
    assert 2 not in newest_told(job, 0).replicas  # type: ignore[union-attr]


def test_a_lost_node_takes_its_replica_out_and_comes_back_under_a_new_number() -> None:
    """The other node of the replica waits for a replacement, and is in the new replica.

    The loss is charged, and that the two come back is not.
    """
    job = replicated(4, 2)
    before = rounds_of(job)
    job.agents[3].crash()
    job.run(0.5)
    assert newest_told(job, 0) == roster(job)
    assert roster(job).replicas == (1,)
    assert job.is_in("TRAINING")
    job.run(30.0)
    assert seats(job) == {1: [0, 1], 3: [2, 3]}
    assert job.charges() == [wire.BudgetKind.FAILURES]
    assert roster(job).replicas == (1, 3)
    assert [rounds_of(job)[rank] for rank in (0, 1)] == [before[0], before[1]]


def test_two_replicas_lost_at_once_are_out_together_or_one_after_the_other() -> None:
    """Whoever is left has a roster without both."""
    job = replicated(6)
    job.agents[1].crash()
    job.agents[4].crash_worker()
    job.run(1.0)
    assert not {2, 5} & set(roster(job).replicas)
    assert newest_told(job, 0) == roster(job)
    job.run(30.0)
    assert len(roster(job).replicas) == 6


def test_a_master_that_dies_leaves_replicas_alone() -> None:
    """The next one goes on with the same replicas and the same epoch."""
    job = replicated(4)
    before, known = rounds_of(job), roster(job)
    job.kill_master(2.0)
    job.run(20.0)
    assert rounds_of(job) == before
    assert roster(job) == known
    assert job.is_in("TRAINING")


def test_a_master_whose_journal_lost_a_roster_makes_a_newer_one() -> None:
    """Ranks take no roster that is older than theirs; they leave their groups and meet anew."""
    job = replicated(3)
    known = roster(job)
    job.kill_master()
    for rank in range(3):
        told = job.agents[rank].rosters
        told.append(dataclasses.replace(told[-1], roster=dataclasses.replace(known, epoch=7)))
    job.run(1.0)
    job.start_master()
    job.run(5.0)
    assert (roster(job).epoch, roster(job).replicas, roster(job).since) == (8, (1, 2, 3), (8, 8, 8))
    assert newest_told(job, 0) == roster(job)


def test_who_could_not_meet_in_an_epoch_that_is_not_known_is_told_a_newer_one() -> None:
    """Another master had told it of that epoch after its hello."""
    job = replicated(3)
    say(job, 1, wire.RosterFailed(epoch=9))
    job.run(0.2)
    assert (roster(job).epoch, roster(job).replicas, roster(job).since) == (
        10,
        (1, 2, 3),
        (10, 10, 10),
    )
    job.run(5.0)
    assert roster(job).epoch == 10


def test_an_epoch_that_two_masters_have_made_is_made_anew() -> None:
    """A rank that was told the other one's would not take this master's of the same number."""
    job = replicated(3)
    known = roster(job)
    job.kill_master()
    told = job.agents[1].rosters
    other = dataclasses.replace(known, replicas=(1, 2), since=(1, 1))
    told.append(dataclasses.replace(told[-1], roster=other))
    job.run(1.0)
    job.start_master()
    job.run(5.0)
    assert (roster(job).epoch, roster(job).replicas) == (known.epoch + 1, (1, 2, 3))
    for rank in range(3):
        assert newest_told(job, rank) == roster(job)


def test_a_replica_that_is_lost_while_no_master_lives_is_replaced_by_the_next() -> None:
    """Only its processes are started anew, and its number is not given again."""
    job = replicated(4)
    before = rounds_of(job)
    job.kill_master(3.0)
    job.agents[2].crash_worker()
    job.run(25.0)
    after = rounds_of(job)
    assert {rank for rank in before if before[rank] != after[rank]} == {2}
    assert roster(job).replicas == (1, 2, 4, 5)


def test_replicas_come_and_go_with_the_wanted_number() -> None:
    """4 to 2 to 6: nobody who stays is restarted."""
    job = replicated(4, max_replicas=8)
    before = rounds_of(job)
    job.operator.change(replicas=2)
    job.run(20.0)
    assert roster(job).replicas == (1, 2)
    job.operator.change(replicas=6)
    job.run(40.0)
    assert len(roster(job).replicas) == 6
    assert [rounds_of(job)[rank] for rank in (0, 1)] == [before[0], before[1]]


def test_a_drained_node_leaves_without_a_barrier() -> None:
    """The others are told to go on without it; nobody stops."""
    job = replicated(3)
    before = rounds_of(job)
    job.evict(1)
    job.run(1.0)
    assert 2 not in roster(job).replicas
    job.run(20.0)
    assert [rounds_of(job)[rank] for rank in (0, 2)] == [before[0], before[2]]


def test_who_drains_a_node_is_told_that_no_barrier_is_waited_for() -> None:
    """The answer names the replica, which leaves with the node."""
    job = replicated(3)
    answer = job.answers[job.ask(wire.DrainNodeRequest(node_rank=1))]
    assert isinstance(answer, Reply)
    assert "node 1 leaves with its replica, without a barrier; then" in str(answer.response)


def test_a_roster_whose_members_could_not_meet_is_made_anew_in_another_store() -> None:
    """A group that fails to form is tried again only in another epoch."""
    job = replicated(3)
    known = roster(job)
    say(job, 0, wire.RosterFailed(epoch=known.epoch))
    job.run(0.2)
    assert roster(job).epoch == known.epoch + 1
    assert roster(job).replicas == known.replicas
    assert roster(job).store_host != known.store_host
    say(job, 1, wire.RosterFailed(epoch=known.epoch))
    job.run(0.2)
    assert roster(job).epoch == known.epoch + 1


def test_the_end_of_all_replicas_ends_the_job_well() -> None:
    """Each replica's processes end with exit code 0; the last ones need no other roster."""
    job = replicated(3)
    epoch = roster(job).epoch
    job.training.retarget(job.training.best + 20)
    job.run_until("SUCCEEDED")
    assert roster(job).epoch == epoch


def test_a_replica_that_has_ended_leaves_the_roster_in_time() -> None:
    """However long replicas may wait for each other at their start."""
    job = replicated(3, join_window_seconds=300.0)
    job.agents[0].workers.exit(0, 0)
    job.run(9.0)
    assert roster(job).replicas == (1, 2, 3)
    job.run(2.0)
    assert roster(job).replicas == (2, 3)


def test_a_replica_that_has_ended_is_out_once_others_cannot_meet() -> None:
    """None of its ranks will come, so the next epoch is without it, and so is each later one."""
    job = replicated(3)
    job.agents[0].workers.exit(0, 0)
    job.run(0.5)
    known = roster(job)
    say(job, 1, wire.RosterFailed(epoch=known.epoch))
    job.run(0.2)
    assert roster(job).replicas == (2, 3)
    job.run(12.0)
    assert (roster(job).epoch, roster(job).replicas) == (known.epoch + 1, (2, 3))


def test_a_script_that_asks_for_no_roster_is_told_of() -> None:
    """Its replicas would train alone, each with weights of its own."""
    job = SteeredJob(job_spec(replicas=2, nodes_per_replica=1, min_replicas=1))
    for agent in job.add_agents(2):
        agent.follows_rosters = False
    job.run_until("TRAINING")
    (text,) = job.texts("ReplicaAlone")
    assert "1, 2; spec.replicaPolicy needs a script" in text
    assert "ReplicaAlone" not in replicated(2).reasons()


@pytest.mark.parametrize("nodes_per_replica", [0, 1])
def test_no_roster_is_told_where_there_are_no_replicas(nodes_per_replica: int) -> None:
    """A job without replicas has one world, as ever."""
    job = started(2, nodes_per_replica=nodes_per_replica, min_replicas=1)
    job.run(2.0)
    modes = [m.mode for _, m in job.sent if isinstance(m, wire.WorldAssignment)]
    assert (wire.AssignmentMode.RECONFIGURE in modes) is (nodes_per_replica > 0)


def test_a_replica_that_ends_well_while_no_world_runs_counts() -> None:
    """Its exit comes between the loss of another and the next world."""
    job = replicated(3)
    job.agents[2].crash_worker()
    until_broken(job)
    job.agents[0].workers.exit(0, 0)
    job.run(5.0)
    for rank in (1, 2):
        job.agents[rank].workers.exit(0, 0)
    job.run(60.0)
    assert job.is_in("SUCCEEDED"), job.tale()


def test_a_finished_replica_whose_node_goes_before_the_next_world_is_no_loss() -> None:
    """The world that was decided with it is assigned to the others."""
    job = replicated(3)
    job.agents[0].workers.exit(0, 0)
    job.run(0.5)
    hold_store(job, 2)
    job.agents[2].crash_worker()
    job.run(0.3)
    job.agents[0].crash()
    job.run(20.0)
    assert {2, 4} <= set(seats(job)), job.tale()


def test_a_finished_replica_that_reconnects_is_not_started_again() -> None:
    """Its processes are gone for a good reason, also while the next world waits for its store."""
    job = replicated(3)
    job.agents[0].workers.exit(0, 0)
    job.run(0.5)
    hold_store(job, 2)
    job.agents[2].crash_worker()
    job.run(0.3)
    job.agents[0].blip()
    job.run(20.0)
    assert set(seats(job)) == {1, 2, 4}
    assert job.state.finished == {0}, "the journal knows of it in the next world"


def test_two_of_three_that_train_on_are_what_people_read() -> None:
    """While one begins anew the job trains, at the step of those that synchronise."""
    job = replicated(3)
    job.run(5.0)
    job.agents[1].crash_worker()
    seen = []
    for _ in range(40):
        job.run(0.01)
        if job.phase.name in {"FORMING", "STARTING"}:
            seen.append(job.status)
    assert {one.phase.name for one in seen} == {"TRAINING"}, job.tale()
    assert {one.text.split(";")[0] for one in seen} == {"2 of 3 replicas train on"}
    steps = [one.step for one in seen]
    assert steps == sorted(steps)
    assert steps[0] > 50
    assert job.status.step >= steps[-1]


def test_failures_that_come_before_a_new_replica_trains_count_too() -> None:
    """The rate that checkpoints follow is of all failures while others train."""
    job = replicated(3)
    job.run(5.0)
    for rank in (2, 1, 2):
        job.agents[rank].crash_worker()
        job.run_until("STARTING")
    job.run(60.0)
    state = job.state
    assert len(state.incidents) == sum(state.tier_failures.values()) > 1, job.tale()
