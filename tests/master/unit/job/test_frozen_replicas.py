"""Replicas that keep others waiting: who is found, when, and what becomes of it."""

from __future__ import annotations

import pytest

from holdfast_master.policies.hang_response import HangKind
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason
from simulation.steered.job import SteeredJob, started
from simulation.steered.replicas import replicated, roster, rounds_of, say, stands


def test_a_replica_that_keeps_others_waiting_is_restarted() -> None:
    """Its steps stand still behind those of the others, which wait for it in a sync."""
    job = replicated(
        3, health=wire.HealthPolicy(hang=wire.HangPolicy(mode=wire.HealthMode.ACT, min_seconds=300))
    )
    before = rounds_of(job)
    stands(job, 1)
    job.run(3.0)
    for rank in (0, 2):
        stands(job, rank)
    job.run(45.0)
    assert "ReplicaFrozen" in job.reasons()
    assert [rounds_of(job)[rank] for rank in (0, 2)] == [before[0], before[2]]
    assert rounds_of(job)[1] != before[1]


def test_a_replica_that_hangs_is_out_until_it_steps_again() -> None:
    """Where hangs are only reported, nobody is restarted; the others go on without it meanwhile."""
    job = replicated(3)
    before = rounds_of(job)
    stands(job, 1)
    job.run(3.0)
    for rank in (0, 2):
        stands(job, rank)
    job.run(7.0)
    text = job.status.text
    assert "no replica has completed a step for " in text
    assert "replica 2 not for the longest time: " in text
    job.run(28.0)
    assert roster(job).replicas == (1, 3)
    for rank in range(3):
        stands(job, rank, stuck=False)
    job.run(5.0)
    assert roster(job).replicas == (1, 2, 3)
    assert rounds_of(job) == before


def stopped(nodes: int) -> SteeredJob:
    """A job of as many replicas whose second one was stopped, and is out of the roster."""
    job = replicated(nodes)
    assert job.agents[1].sampling.hang(HangKind.STOPPED, 0) is not None
    others = [rank for rank in range(nodes) if rank != 1]
    for rank in others:
        stands(job, rank)
    job.run(5.0)
    assert roster(job).replicas == tuple(rank + 1 for rank in others), job.tale()
    return job


def test_a_stopped_process_is_out_within_five_seconds() -> None:
    """That sign needs no long wait; who only stands still is given it."""
    assert roster(stopped(3)).replicas == (1, 3)


def test_a_second_replica_that_freezes_is_out_too() -> None:
    """The first is out and the rest still stand: they are asked again, once it took too long."""
    job = stopped(4)
    assert job.agents[2].sampling.hang(HangKind.STOPPED, 0) is not None
    job.run(10.0)
    assert roster(job).replicas == (1, 4), job.tale()


def test_a_replica_that_freezes_soon_after_another_is_out_as_soon() -> None:
    """The question that found the first was no pause: the next one need not wait half a minute."""
    job = stopped(3)
    for rank in (0, 2):
        stands(job, rank, stuck=False)
    job.run(6.0)
    assert job.agents[2].sampling.hang(HangKind.STOPPED, 0) is not None
    stands(job, 0)
    job.run(5.0)
    assert roster(job).replicas == (1,), job.tale()


def test_a_pause_of_all_is_asked_about_once_and_blames_nobody() -> None:
    """As where all wait for one storage: half a minute apart at the least."""
    job = replicated(3)
    for rank in range(3):
        stands(job, rank)
    job.run(20.0)
    assert job.core.job.worlds.inquiry is not None
    assert job.core.job.worlds.inquiry.early
    assert "ReplicaFrozen" not in job.reasons()
    assert roster(job).replicas == (1, 2, 3)


def starting(job: SteeredJob, rank: int) -> None:
    """A replica of one node begins anew, is in the roster, and completes no first step."""
    agent = job.agents[rank]
    before = agent.round
    agent.crash_worker()
    for _ in range(3000):
        job.run(0.01)
        current = agent.workers.current
        if agent.round > before and current is not None and current.physics is not None:
            stands(job, rank)
            job.run(0.3)
            assert len(roster(job).replicas) == len(job.agents), job.tale()
            return
    raise AssertionError(job.tale())


def test_a_replica_without_a_first_step_hides_no_frozen_one() -> None:
    """It may start yet, so it is not blamed; another one whose processes are stopped is."""
    job = replicated(3)
    starting(job, 2)
    assert job.agents[1].sampling.hang(HangKind.STOPPED, 0) is not None
    job.run(3.0)
    stands(job, 0)
    job.run(45.0)
    assert roster(job).replicas == (1, 4)
    (text,) = job.texts("ReplicaFrozen")
    assert text.startswith("replica 2"), text


def test_steps_blame_nobody_while_a_replica_starts() -> None:
    """By time replicas wait for it at unlike steps: who is behind is no culprit."""
    job = replicated(3)
    starting(job, 2)
    stands(job, 1)
    job.run(3.0)
    stands(job, 0)
    job.run(45.0)
    assert "ReplicaFrozen" not in job.reasons()
    assert roster(job).replicas == (1, 2, 4)
    stands(job, 2, stuck=False)
    job.run(60.0)
    stands(job, 2)
    job.run(45.0)
    assert 2 not in roster(job).replicas, "it is behind two others that have stepped"


def test_a_replica_that_was_stopped_before_its_first_step_is_found_by_its_ranks() -> None:
    """The evidence tells it from one that still starts."""
    job = replicated(3)
    starting(job, 2)
    stands(job, 2, stuck=False)
    assert job.agents[2].sampling.hang(HangKind.STOPPED, 0) is not None
    for rank in (0, 1):
        stands(job, rank)
    job.run(45.0)
    assert roster(job).replicas == (1, 2)
    stands(job, 2, stuck=False)
    job.run(5.0)
    assert roster(job).replicas == (1, 2, 4), "it steps"


def test_a_replica_that_never_completes_a_first_step_is_restarted() -> None:
    """The others have waited for as long as a first step may take, and then go on."""
    settings = wire.HangPolicy(mode=wire.HealthMode.ACT, min_seconds=40, first_step_seconds=120)
    job = replicated(3, health=wire.HealthPolicy(hang=settings))
    starting(job, 2)
    before = rounds_of(job)
    for rank in (0, 1):
        stands(job, rank)
    job.run(110.0)
    assert "ReplicaFrozen" not in job.reasons()
    assert rounds_of(job) == before
    job.run(25.0)
    assert "ReplicaFrozen" in job.reasons()
    assert {rank for rank in before if before[rank] != rounds_of(job)[rank]} == {2}, job.tale()
    for rank in (0, 1):
        stands(job, rank, stuck=False)
    job.run(60.0)
    assert job.reasons().count("ReplicaFrozen") == 1
    assert roster(job).replicas == (1, 2, 5)


def frozen_behind_the_end(*, saved: bool) -> SteeredJob:
    """Replica 2 was put out, and the others end the training meanwhile."""
    job = replicated(3)
    stands(job, 1)
    job.run(3.0)
    for rank in (0, 2):
        stands(job, rank)
    job.run(35.0)
    assert roster(job).replicas == (1, 3)
    if saved:
        version = wire.CheckpointVersion(lineage=1, step=50)
        job.state.checkpoint = wire.CheckpointCommitted(version=version, world_size=1)
    for rank in (0, 2):
        job.agents[rank].workers.exit(0, 0)
    job.run(15.0)
    assert not job.end, job.tale()
    return job


@pytest.mark.parametrize("how", ["steps", "says so"])
def test_a_replica_that_goes_on_after_the_others_end_begins_anew(how: str) -> None:
    """From their last checkpoint: alone it would train on, and leave one that nobody agreed on."""
    job = frozen_behind_the_end(saved=True)
    before, epoch = rounds_of(job)[1], roster(job).epoch
    if how == "steps":
        stands(job, 1, stuck=False)
    else:
        say(job, 1, wire.RosterFailed(epoch=epoch - 1))
    job.run(10.0)
    assert rounds_of(job)[1] > before, job.tale()
    assert job.charges() == [], "nothing has failed"
    assert any("after the others have ended" in one.text for one in job.incidents)
    job.agents[1].workers.exit(0, 0)
    job.run_until("SUCCEEDED")


def test_without_a_checkpoint_it_goes_on_alone() -> None:
    """It has the only state that there is."""
    job = frozen_behind_the_end(saved=False)
    before = rounds_of(job)[1]
    stands(job, 1, stuck=False)
    job.run(10.0)
    assert rounds_of(job)[1] == before, job.tale()
    assert roster(job).replicas == (2,)


def test_a_rank_that_has_ended_well_puts_no_replica_out() -> None:
    """Its process is gone, as it should be; the others of its replica wait as all do."""
    job = started(2, agents={"local": 2}, nodes_per_replica=1, min_replicas=1)
    job.run(1.0)
    job.agents[1].workers.exit(0, 0)
    job.run(0.5)
    assert job.agents[1].sampling.hang(HangKind.PROCESS_GONE, 0) is not None
    for rank in (0, 1):
        stands(job, rank)
    job.run(45.0)
    assert roster(job).replicas == (1, 2), job.tale()


def _all_stand() -> tuple[SteeredJob, dict[int, int]]:
    """Three replicas that complete no further step, and the rounds of their nodes; hangs count."""
    settings = wire.HangPolicy(mode=wire.HealthMode.ACT, min_seconds=45)
    job = replicated(3, health=wire.HealthPolicy(hang=settings))
    for rank in range(3):
        stands(job, rank)
    return job, rounds_of(job)


def test_replicas_that_all_stand_still_meet_anew_first() -> None:
    """As behind a network that was cut: nobody restarts, and where it helps no more is done."""
    job, before = _all_stand()
    first = roster(job)
    job.time.run(job.time.now + 120.0, lambda: "ReplicaFrozen" in job.reasons())
    assert "all 3 replicas have stood still" in job.texts(EventReason.REPLICA_FROZEN)[-1]
    assert roster(job).replicas == first.replicas
    assert roster(job).since == (roster(job).epoch,) * 3, "they leave the groups that they had"
    assert 0 in job.context.worlds.frozen, "people are told of a hang meanwhile"
    for rank in range(3):
        stands(job, rank, stuck=False)
    job.run(5.0)
    assert 0 not in job.context.worlds.frozen
    job.run(115.0)
    assert len(job.texts(EventReason.REPLICA_FROZEN)) == 1
    assert rounds_of(job) == before


def test_replicas_that_stand_still_all_the_same_are_restarted() -> None:
    """Where hangs are acted on, once they have had as long again."""
    job, before = _all_stand()
    job.run(240.0)
    texts = job.texts(EventReason.REPLICA_FROZEN)
    assert texts[0].endswith("; they meet anew")
    assert texts[1].endswith("; it is restarted")
    assert all(rounds_of(job)[rank] != before[rank] for rank in range(3))


def test_replicas_that_cannot_meet_are_not_restarted() -> None:
    """The network between them is cut: others in their place could not meet either."""
    job, before = _all_stand()
    for _ in range(60):
        job.run(5.0)
        if roster(job).epoch > 1:
            job.agents[0].report(wire.RosterFailed(epoch=roster(job).epoch), before[0])
    assert roster(job).epoch > 10, "they try again and again"
    assert 0 in job.context.worlds.frozen
    assert rounds_of(job) == before
    assert len(job.texts(EventReason.REPLICA_FROZEN)) == 1
