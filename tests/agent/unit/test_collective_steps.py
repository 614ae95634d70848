"""Steps that are guessed from collectives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_agent.policies.collective_steps import GroupWindow, StepGuess, advance, period


def _window(signatures: list[int], first: int = 1, pace: float = 0.1) -> GroupWindow:
    issued = tuple(pace * number for number in range(first, first + len(signatures)))
    return GroupWindow("0", first, tuple(signatures), issued)


@pytest.mark.parametrize(
    ("signatures", "length"),
    [
        pytest.param([7] * 9, 1, id="one-bucket"),
        pytest.param([1, 2, 3] * 4, 3, id="three-buckets"),
        pytest.param([1, 1, 2] * 4, 3, id="equal-buckets"),
        pytest.param([1, 2, 3, 4, 5, 6], 0, id="no-period"),
        pytest.param([1, 2, 1, 2], 0, id="two-periods-are-too-few"),
        pytest.param([1, 2] * 20 + [9] + [1, 2] * 20, 2, id="a-loss-is-summed-in-between"),
        pytest.param([], 0, id="nothing"),
    ],
)
def test_the_shortest_period_is_found(signatures: list[int], length: int) -> None:
    """Three periods are enough; a rare collective in between does not hide one."""
    assert period(signatures) == length


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(3, 8))
def test_a_repeated_sequence_has_a_period(step: list[int], times: int) -> None:
    """It is never longer than what is repeated."""
    assert 1 <= period(step * times) <= len(step)


def test_steps_are_counted_over_windows_that_overlap_or_miss_some() -> None:
    """What lies between two looks counts too: sequence numbers tell how many there were."""
    guess = advance(StepGuess(), [_window([1, 2] * 8)])
    assert (guess.step, guess.period, guess.last) == (8, 2, 16)
    guess = advance(guess, [_window([1, 2] * 8, first=9)])
    assert guess.step == 12
    guess = advance(guess, [_window([1, 2] * 8, first=101)])
    assert (guess.step, guess.last) == (58, 116)
    assert guess.step_seconds == pytest.approx(0.2)
    assert guess.at == pytest.approx(11.6)


def test_collectives_without_a_period_are_no_step_only_where_none_was_missed() -> None:
    """A script that has just begun has made none; of irregular collectives nobody knows."""
    assert not advance(StepGuess(), []).expected
    begun = advance(StepGuess(), [_window([1, 2, 3])])
    assert (begun.expected, begun.step, begun.period) == (True, 0, 0)
    assert not advance(begun, [_window([4, 5, 6, 7], first=300)]).expected
    steps = advance(begun, [_window([1, 2, 3] + [4, 5] * 60)])
    assert (steps.expected, steps.period) == (False, 2)


def test_nothing_new_changes_nothing() -> None:
    """A rank that hangs keeps its count and the time of its newest collective."""
    guess = advance(StepGuess(), [_window([1] * 10)])
    assert advance(guess, [_window([1] * 10)]) == guess
    assert advance(guess, []) == guess


def test_the_group_with_the_most_collectives_is_counted_and_kept() -> None:
    """A group that joins later does not take the count over."""
    other = GroupWindow("1", 1, (5,) * 4, (0.1, 0.2, 0.3, 0.4))
    guess = advance(StepGuess(), [other, _window([1, 2] * 8)])
    assert guess.group == "0"
    busy = GroupWindow("1", 1, (5,) * 90, tuple(0.01 * n for n in range(90)))
    guess = advance(guess, [busy, _window([1, 2] * 8, first=11)])
    assert (guess.group, guess.step) == ("0", 13)
