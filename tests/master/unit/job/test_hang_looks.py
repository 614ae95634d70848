"""Later looks at hangs that were left alone or wait for their answer: what ranks do now counts."""

from __future__ import annotations

import dataclasses

from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason
from simulation.steered.hangs import (
    ACT,
    LOADS,
    READS,
    STOPPED,
    STUCK,
    WAITS,
    answer,
    failures,
    stand_still,
)
from simulation.steered.job import SteeredJob, training


def _left_while_bytes_move() -> SteeredJob:
    """Return a job that is left alone as rank 1 waits for bytes, after `firstStepSeconds`."""
    job = training(3, health=ACT)
    for _ in range(2):
        answer(job, stand_still(job), {1: READS})
    job.run(5.0)
    assert "makes progress" in job.texts(EventReason.HANG_LEFT)[0]
    return job


def test_bytes_that_stop_end_the_patience() -> None:
    """The ranks are looked at each minute, under a new number, and people hear once of each."""
    job = _left_while_bytes_move()
    order = stand_still(job)
    assert order.command_id == 3
    answer(job, order, {1: READS})
    job.run(20.0)
    assert not failures(job)
    for number, ended in ((4, 0), (5, 1)):
        order = stand_still(job)
        assert order.command_id == number
        answer(job, order, {1: LOADS})
        job.run(15.0)
        assert failures(job) == [("Hung", "1")] * ended
    assert len(job.texts(EventReason.HANG_LEFT)) == 1
    assert len(job.texts(EventReason.HANG_FOUND)) == 1


def test_a_later_look_that_shows_less_takes_nothing_back() -> None:
    """Of an agent that does not answer in time: nobody is restarted for lack of evidence."""
    job = _left_while_bytes_move()
    before = job.core.health(job.moment()).hang
    order = stand_still(job)
    agent = job.agents[0]
    agent.report(wire.EvidenceCollected(command_id=order.command_id, ranks=(WAITS,)), 1)
    job.run(20.0)
    after = job.core.health(job.moment()).hang
    assert before is not None
    assert after is not None
    assert (after.cause, after.ranks) == (before.cause, before.ranks) == ("data loader", (1,))
    assert not failures(job)
    assert stand_still(job).command_id > order.command_id


def test_late_evidence_of_an_earlier_look_is_no_news() -> None:
    """It shows what was."""
    job = _left_while_bytes_move()
    order = stand_still(job)
    answer(job, dataclasses.replace(order, command_id=order.command_id - 1), {1: STOPPED})
    job.run(15.0)
    assert not failures(job)


def test_one_rank_that_stays_behind_all_others_is_restarted() -> None:
    """All waited for their data, and for a minute all but one have had it."""
    job = training(3, health=ACT)
    answer(job, stand_still(job), dict.fromkeys(range(3), LOADS))
    job.run(20.0)
    assert "would meet the same" in job.texts(EventReason.HANG_LEFT)[0]
    for behind in ([1, 2], [1]):
        answer(job, stand_still(job), dict.fromkeys(behind, LOADS))
        job.run(20.0)
        assert not failures(job), "they get it one by one"
    answer(job, stand_still(job), {1: LOADS})
    job.run(15.0)
    assert failures(job) == [("Hung", "1")]


def test_nodes_that_all_have_it_are_looked_at_again() -> None:
    """Until one has it alone."""
    job = training(3, min_replicas=2, health=ACT)
    answer(job, stand_still(job), dict.fromkeys(range(3), STUCK))
    job.run(20.0)
    assert "all nodes have it" in job.texts(EventReason.HANG_LEFT)[0]
    for _ in range(2):
        assert not failures(job)
        answer(job, stand_still(job), {2: STUCK})
        job.run(15.0)
    assert failures(job) == [("Hung", "2")]


def _waits_for_its_turn() -> SteeredJob:
    """Return a job whose second hang waits, for as long as the answer to the first has cost."""
    job = training(3, health=ACT)
    answer(job, stand_still(job), {1: LOADS})
    job.run(20.0)
    answers = job.context.health.answered
    answers[0] = dataclasses.replace(answers[0], cost_seconds=100.0)
    answer(job, stand_still(job), {1: LOADS})
    job.run(20.0)
    assert len(failures(job)) == 1
    return job


def test_who_waits_for_an_answer_is_looked_at_again() -> None:
    """What moves by then is at work."""
    job = _waits_for_its_turn()
    for _ in range(2):
        answer(job, stand_still(job), {1: READS})
        job.run(20.0)
    job.run(100.0)
    assert len(failures(job)) == 1
    assert "makes progress" in job.texts(EventReason.HANG_LEFT)[0]


def test_a_rank_that_ends_well_while_an_answer_waits_is_not_run_again() -> None:
    """The verdict is of before its end."""
    job = _waits_for_its_turn()
    job.agents[2].workers.exit(0, 0)
    job.run(100.0)
    assert len(failures(job)) == 1
    assert "a finished script" in job.texts(EventReason.HANG_LEFT)[0]


def test_a_hang_that_people_know_is_not_forgotten_at_a_later_look() -> None:
    """Its ranks are at work now, and have not made a step since."""
    policy = dataclasses.replace(ACT.hang, first_step_seconds=300.0)  # type: ignore[type-var]
    job = training(3, health=wire.HealthPolicy(hang=policy))
    answer(job, stand_still(job), dict.fromkeys(range(3), LOADS))
    job.run(20.0)
    answer(job, stand_still(job), dict.fromkeys(range(3), READS))
    job.run(20.0)
    assert job.core.health(job.moment()).hang is not None
    assert not job.texts(EventReason.HANG_OVER)
    stand_still(job)
    assert not failures(job)
