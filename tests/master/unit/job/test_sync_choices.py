"""Replicas of one world that choose how they agree: what people read of it."""

from __future__ import annotations

import dataclasses

from holdfast_wire.messages import JobEvent, RestartWorkerRequest, SyncChosen
from simulation.steered.job import SteeredJob, training
from simulation.steered.replicas import replicated, rounds_of

SLOW = SyncChosen(step=24, interval=4, interval_before=1, made=True, reason="it costs 40 %")
FAST = SyncChosen(step=90, interval=1, interval_before=4, made=True, reason="it costs 2 %")


def say(
    job: SteeredJob, message: SyncChosen, round_number: int | None = None, *, rank: int = 0
) -> None:
    """The agent of a node tells a choice of its ranks."""
    agent = job.agents[rank]
    agent.report(message, agent.round if round_number is None else round_number)
    job.run(0.2)


def told(job: SteeredJob) -> list[JobEvent]:
    """The events about choices."""
    events = job.core.events_after(0, 100_000)
    return [one for one in events if one.reason.startswith("Sync")]


def now(job: SteeredJob) -> SyncChosen | None:
    """How replicas agree by the job's status."""
    return job.status.sync


def test_a_switch_is_an_event_with_its_reason() -> None:
    """It names the step, both intervals and what was measured, and the status has the newest."""
    job = training(2)
    assert now(job) is None
    say(job, SLOW)
    say(job, FAST)
    assert [(one.reason, one.text) for one in told(job)] == [
        (
            "SyncSwitched",
            "replicas agree after each 4 steps from step 24 on, not in each step: it costs 40 %",
        ),
        (
            "SyncSwitched",
            "replicas agree in each step from step 90 on, not after each 4 steps: it costs 2 %",
        ),
    ]
    found = now(job)
    assert found is not None
    assert (found.step, found.interval) == (90, 1)


def test_a_proposal_is_told_as_one() -> None:
    """Nothing runs otherwise for it."""
    job = training(2)
    say(job, SyncChosen(step=8, interval=16, interval_before=4, reason="it costs 40 %"))
    (event,) = told(job)
    assert event.reason == "SyncProposed"
    assert event.text == (
        "replicas would agree after each 16 steps from step 8 on, not after each 4 steps: "
        "it costs 40 %"
    )


def test_a_choice_is_told_once_though_agents_repeat_it_to_a_new_master() -> None:
    """The next master has it from the journal."""
    job = training(2)
    say(job, SLOW)
    say(job, SLOW)
    job.kill_master(1.0)
    job.run(10.0)
    say(job, SLOW)
    assert len(told(job)) == 1
    found = now(job)
    assert found is not None
    assert found.step == SLOW.step


def test_ranks_of_an_ended_world_say_nothing_of_the_next() -> None:
    """A restart begins without a choice until its ranks tell theirs; an old report is dropped."""
    job = training(2)
    before = job.agents[0].round
    say(job, SLOW)
    job.agents[1].crash_worker()
    job.run(20.0)
    assert job.agents[0].round > before
    assert now(job) is None
    say(job, FAST, before)
    assert now(job) is None
    assert len(told(job)) == 1
    say(job, SLOW)
    assert len(told(job)) == 2


def test_a_choice_after_a_rollback_counts_though_its_step_is_lower() -> None:
    """A script may load an older checkpoint in its processes."""
    job = training(2)
    say(job, FAST)
    say(job, SLOW)
    assert len(told(job)) == 2
    found = now(job)
    assert found is not None
    assert found.step == SLOW.step


def test_a_choice_of_replicas_outlives_the_one_that_has_told_it() -> None:
    """Another tells it again, and a later one; what comes late of an older choice is dropped."""
    job = replicated(4)
    say(job, SLOW)
    before = rounds_of(job)
    job.agents[0].crash_worker()
    job.run(10.0)
    assert {rank for rank, one in rounds_of(job).items() if one != before[rank]} == {0}
    say(job, SLOW, rank=1)
    say(job, FAST, rank=1)
    say(job, SLOW, rank=2)
    say(job, FAST, rank=0)
    assert [one.text.split(" from")[0] for one in told(job)] == [
        "replicas agree after each 4 steps",
        "replicas agree in each step",
    ]
    found = now(job)
    assert found is not None
    assert found.step == FAST.step


def test_replicas_that_all_begin_again_have_made_no_choice() -> None:
    """A restart of the job: its ranks begin with what their script says."""
    job = replicated(2)
    say(job, SLOW)
    job.ask(RestartWorkerRequest(reason="test"))
    job.run(10.0)
    assert now(job) is None
    say(job, SLOW)
    assert len(told(job)) == 2


def test_what_replicas_propose_is_told_once_though_another_finds_it_again() -> None:
    """The one that has told it first is lost; the next finds the same at a later step."""
    job = replicated(3)
    found = SyncChosen(step=8, interval=16, interval_before=4, reason="it costs 40 %")
    say(job, found)
    say(job, dataclasses.replace(found, step=80, reason="it costs 41 %"), rank=1)
    assert len(told(job)) == 1
    say(job, dataclasses.replace(found, step=90, interval=8), rank=1)
    assert len(told(job)) == 2


def test_a_choice_ends_with_the_last_replica_that_knew_of_it() -> None:
    """One fails, and the other before any new one was in a roster with it."""
    job = replicated(2)
    say(job, FAST)
    job.agents[1].crash_worker()
    job.agents[0].crash_worker()
    job.run(20.0)
    assert now(job) is None
    say(job, SLOW, rank=1)
    assert [one.text.split(" from")[0] for one in told(job)] == [
        "replicas agree in each step",
        "replicas agree after each 4 steps",
    ]
