"""Checkpoints of replicas: one of them saves, and each starts from a plan of its own."""

from __future__ import annotations

import pytest

from holdfast_master.instructions import Refuse, Reply
from holdfast_master.job.checkpoints import restore
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec
from simulation.steered.replicas import hold_store, replicated, rounds_of, say, until_broken

ASK = wire.TriggerCheckpointRequest(reason="before the upgrade")


def commit(job: SteeredJob, step: int) -> None:
    """The first replica, of one node, has a step on storage and commits it."""
    version = wire.CheckpointVersion(lineage=1, step=step)
    part = wire.ShardsPersisted(
        version=version, world_size=1, ranks=(0,), root="/r/", attempt="a", bytes=1
    )
    say(job, 0, part)
    job.run(0.2)
    grant = next(one for _, one in reversed(job.sent) if isinstance(one, wire.CommitGrant))
    say(job, 0, wire.CommitResult(version=version, own=grant.own))
    job.run(0.2)


def test_a_checkpoint_that_somebody_waits_for_outlives_the_loss_of_another_replica() -> None:
    """The first one saves, and it goes on: while no world runs, and in the next one."""
    job = replicated(3)
    job.agents[2].crash_worker()
    until_broken(job)
    early = job.ask(ASK)
    job.run(0.5)
    step = job.agents[0].saves[-1].step
    hold_store(job, 1)
    job.agents[1].crash_worker()
    until_broken(job)
    job.run(2.5)
    assert not job.is_in("TRAINING")
    late = job.ask(ASK)
    job.run(6.0)
    assert {early, late}.isdisjoint(job.answers), job.answers
    assert job.is_in("TRAINING")
    commit(job, step)
    assert isinstance(job.answers[early], Reply)
    assert late not in job.answers
    commit(job, job.agents[0].saves[-1].step)
    assert isinstance(job.answers[late], Reply)


def test_a_checkpoint_is_refused_once_the_replica_that_saves_is_lost() -> None:
    """The next first one began in the same round, and was told of no step."""
    job = replicated(3)
    number = job.ask(ASK)
    job.run(0.2)
    job.agents[0].crash_worker()
    job.run(10.0)
    answer = job.answers[number]
    assert isinstance(answer, Refuse)
    assert answer.reason == "ROUND_ENDED"
    assert job.agents[1].saves == []
    job.ask(ASK)
    job.run(0.5)
    assert len(job.agents[1].saves) == 1


@pytest.mark.parametrize("late", [False, True])
def test_replicas_that_start_are_given_plans_of_their_own(late: bool) -> None:  # noqa: FBT001
    """One that fails meanwhile takes no other's plan away; who asks meanwhile is heard."""
    job = SteeredJob(job_spec(replicas=3, nodes_per_replica=1, min_replicas=1))
    job.add_agents(3)
    job.run_until("STARTING")
    job.run(0.2)
    rounds = rounds_of(job)
    job.agents[2].crash_worker()
    if not late:
        until_broken(job)
    for rank in (0, 1):
        job.agents[rank].report(wire.RestoreRequest(), rounds[rank])
    job.run(5.0)
    say(job, 2, wire.RestoreRequest())
    job.run(2.0)
    assert {rank for rank, one in job.sent if isinstance(one, wire.RestorePlan) and one.go} == {
        0,
        1,
        2,
    }


def test_what_to_start_from_is_asked_only_while_a_replica_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job of replicas that train takes many looks, and nothing of a start is in them."""
    job = replicated(3)
    for rank in range(3):
        say(job, rank, wire.RestoreRequest())
    job.run(1.0)
    asked: list[float] = []
    monkeypatch.setattr(restore, "choose", lambda _: asked.append(job.time.now))
    job.operator.change(replicas=2)
    job.run(10.0)
    assert asked == []
    say(job, 0, wire.RestoreRequest())
    job.run(1.0)
    assert asked == []
