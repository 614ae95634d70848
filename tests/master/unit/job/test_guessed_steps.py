"""Scripts without the SDK whose steps are guessed from their collectives."""

from __future__ import annotations

import dataclasses
import math

import pytest

from holdfast_wire.messages import Budget, BudgetKind, GoodputClass
from simulation.steered.job import SteeredJob, job_spec

N, F = BudgetKind.NO_PROGRESS, BudgetKind.FAILURES


def plain(guesses_after: float | None) -> SteeredJob:
    """A job of two nodes that trains without the SDK."""
    budgets = (Budget(kind=F, limit=32), Budget(kind=N, limit=5))
    job = SteeredJob(job_spec(replicas=2, budgets=budgets))
    for agent in job.add_agents(2, sdk=False):
        agent.guesses_after = guesses_after
    job.run_until("TRAINING")
    return job


def guess(job: SteeredJob, after: float | None) -> None:
    """From now on the agents guess the first step this long after a round's first heartbeat."""
    for agent in job.agents.values():
        agent.guesses_after = after


def crash(job: SteeredJob, after: float) -> None:
    """Let the running world train for a while, then end a rank, and wait for the next world."""
    job.run(after)
    before = job.status.round
    job.agents[0].crash_worker()

    def over() -> bool:
        return job.status.round > before or job.is_in("FAILED")

    job.time.run(job.time.now + 60.0, over)
    if not job.is_in("FAILED"):
        job.run_until("TRAINING")


def closed(job: SteeredJob) -> str:
    """Text of the newest closed incident."""
    return job.texts("IncidentClosed")[-1]


def test_a_script_that_crashes_before_its_first_guessed_step_makes_no_progress() -> None:
    """Ten seconds after each start, with collectives and no step: the budget ends the job."""
    job = plain(math.inf)
    for _ in range(9):
        if not job.is_in("FAILED"):
            crash(job, 10.0)
    assert job.is_in("FAILED"), job.charges()
    assert job.status.reason == "NoProgress"
    assert job.charges()[0] is F
    assert set(job.charges()[1:]) == {N}


def test_a_script_with_guessed_steps_makes_progress_though_each_count_begins_at_0() -> None:
    """Fewer guessed steps than in the round before are progress, too."""
    job = plain(0.5)
    for seconds in (30.0, 10.0, 5.0, 20.0, 3.0, 3.0, 3.0, 3.0):
        crash(job, seconds)
    job.run(20.0)
    assert job.is_in("TRAINING")
    assert set(job.charges()) == {F}
    assert job.state.best_step == 0


def test_without_guesses_it_is_as_before() -> None:
    """Agents of an older release guess nothing: a world that trained at all made progress."""
    job = plain(None)
    for _ in range(4):
        crash(job, 10.0)
    job.run(20.0)
    assert set(job.charges()) == {F}


def test_a_crash_before_the_agent_has_looked_is_no_progress_once_steps_were_guessed() -> None:
    """The agent looks a second after the start or later; the script is known by then."""
    job = plain(0.5)
    job.run(10.0)
    guess(job, None)
    for _ in range(3):
        crash(job, 5.0)
    job.run(150.0)
    assert job.charges() == [F, N, N]


def test_a_world_that_ran_for_longer_than_a_first_step_takes_made_progress() -> None:
    """Nobody guesses any more, say with other agents: what is not known is no reproach."""
    job = plain(0.5)
    job.run(10.0)
    guess(job, None)
    crash(job, 1.0)
    crash(job, 2000.0)
    job.run(150.0)
    assert job.charges() == [F, F]


def test_a_guessed_step_ends_the_charges_for_no_progress() -> None:
    """Also those of an incident that closes after the first guess."""
    job = plain(math.inf)
    for _ in range(3):
        crash(job, 5.0)
    guess(job, 1.0)
    job.run(30.0)
    assert job.charges() == [F]


@pytest.mark.parametrize("master_dies", [False, True])
def test_the_time_to_the_next_step_is_a_guess_and_its_start_is_no_training(
    *, master_dies: bool
) -> None:
    """A script that takes 30 s to its first step: its incident waits for it, and says it."""
    job = plain(0.5)
    job.run(10.0)
    guess(job, 30.0)
    crash(job, 0.1)
    job.run(20.0)
    [found] = job.incidents
    assert (found.open, found.first_step_seconds) == (True, 0.0)
    if master_dies:
        job.restart_master()
    job.run(60.0)
    [found] = job.incidents
    assert not found.open
    assert found.first_step_guessed
    assert not found.first_step_unseen
    assert found.first_step_seconds == pytest.approx(31.0, abs=1.5)
    assert f"next step after ~{found.first_step_seconds:.2f} s" in closed(job)
    cost = {entry.kind: entry.node_seconds for entry in found.cost}
    if not master_dies:  # a successor leaves what an earlier master has counted as it is
        assert cost[GoodputClass.RESTART] == pytest.approx(62.0, abs=4.0)


def test_a_step_that_never_comes_is_said_not_to_be_known() -> None:
    """Collectives without a period: the incident waits for two minutes, not for ever."""
    job = plain(math.inf)
    crash(job, 10.0)
    job.run(100.0)
    assert job.charges() == []
    job.run(60.0)
    assert "no rank reports its next step" in closed(job)
    assert job.charges() == [F]


def test_a_guess_is_shown_as_one() -> None:
    """In the status, of each rank, and in one event a round."""
    job = plain(0.5)
    job.run(10.0)
    status = job.status
    assert status.step_guessed
    assert 80 < status.step < 130
    ranks = [rank for node in job.core.nodes(job.moment()) for rank in node.ranks]
    assert all(rank.step_guessed for rank in ranks)
    assert status.goodput_assumed
    assert job.reasons().count("StepsGuessed") == 1


def test_a_lost_node_leaves_no_guess_behind_as_a_step() -> None:
    """What its ranks may have reached by now counts from 0: it is no step of the job."""
    job = plain(0.5)
    job.scenario = dataclasses.replace(job.scenario, sdk=False)
    job.raises = 0.0  # the others wait: the loss is known by the node's silence alone
    job.run(30.0)
    job.agents[1].freeze()
    job.run(30.0)
    job.run_until("TRAINING")
    assert job.status.round > 1
    assert job.state.best_step == 0
    [case] = job.context.incidents.open()
    assert case.reached == 0


def test_a_successor_knows_that_the_round_had_a_guessed_step() -> None:
    """Killed after it, with no word of the ranks since: the crash is no restart in vain."""
    job = plain(0.5)
    crash(job, 5.0)
    job.run(20.0)
    job.restart_master()
    guess(job, None)
    crash(job, 1.0)
    job.run(150.0)
    assert job.charges() == [F, F]
