"""Judgements about guessed steps."""

from __future__ import annotations

import pytest

from holdfast_master.policies.guessed_steps import first_step_age, is_stepless, reported_step
from holdfast_wire.messages import RankProgress, StepSource


def guess(step: int, since: float = 0.0) -> RankProgress:
    """One rank's report."""
    return RankProgress(
        step=step, step_seconds=0.5, since_step_seconds=since, step_source=StepSource.COLLECTIVES
    )


REPORTED = RankProgress(step=700, has_sdk=True)


def test_a_guess_is_no_reported_step() -> None:
    """Only what a rank says itself is a step of the job."""
    assert (reported_step(guess(9)), reported_step(REPORTED)) == (0, 700)


def test_the_first_step_is_that_of_the_last_rank() -> None:
    """Counted back from the newest one; not known while one rank has none."""
    assert first_step_age([guess(5, 1.0), guess(3, 0.5)]) == pytest.approx(1.5)
    assert first_step_age([guess(5), guess(0)]) is None
    assert first_step_age([guess(5), REPORTED]) is None
    assert first_step_age([]) is None


@pytest.mark.parametrize(
    ("ranks", "before", "seconds", "stepless"),
    [
        pytest.param([guess(0), guess(0)], False, 10.0, True, id="no-period-yet"),
        pytest.param([guess(0), guess(1)], True, 10.0, False, id="a-step"),
        pytest.param([guess(0)], True, 1800.0, False, id="too-long-for-a-first-step"),
        pytest.param([], True, 10.0, True, id="ended-before-the-first-look"),
        pytest.param([], True, 1800.0, False, id="guesses-no-more"),
        pytest.param([RankProgress()], False, 10.0, False, id="nobody-guesses"),
    ],
)
def test_a_world_without_a_guessed_step(
    ranks: list[RankProgress], *, before: bool, seconds: float, stepless: bool
) -> None:
    """It is one only where a step could have been guessed."""
    found = is_stepless(ranks, guessed_before=before, seconds=seconds, patience=1800.0)
    assert found is stepless
