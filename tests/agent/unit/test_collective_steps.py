"""Steps that are guessed from collectives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_agent.policies.collective_steps import (
    GroupWindow,
    StepGuess,
    StepMark,
    advance,
    period,
    step_length,
)


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


def _buckets(count: int, steps: int, first: int = 1, *, own: float = 0.03) -> GroupWindow:
    """Return the window of steps with equal buckets, 1 ms apart; one waits for a CPU for 9 ms."""
    issued, at = [], 0.0
    for number in range(count * steps):
        at += own if number % count == 0 else 0.001
        at += 0.008 if number == count + 2 else 0.0
        issued.append(at)
    return GroupWindow("0", first, (7,) * len(issued), tuple(issued))


def test_a_step_of_equal_buckets_ends_where_the_script_pauses() -> None:
    """A model of equal layers has one signature: the step is what lies between long pauses."""
    assert step_length(_buckets(20, 6)) == 20
    assert step_length(_buckets(5, 20)) == 5
    assert step_length(_window([7] * 100)) == 1
    assert step_length(_window(([1] * 19 + [2]) * 5)) == 1  # a loss is summed now and then


def test_a_step_stays_as_long_as_it_was_seen_to_be() -> None:
    """A look whose pauses tell nothing does not cut it."""
    assert step_length(_window([7] * 100), known=20) == 20
    assert step_length(_window([1, 2, 3] * 30), known=20) == 3


def test_reported_steps_tell_how_many_collectives_a_step_has() -> None:
    """They win over a period, and a step may be longer than the recorder's memory."""
    window = _buckets(20, 6, own=0.001)  # nothing tells the steps here
    assert advance(StepGuess(), [window]).period == 1
    marks = [StepMark(step, window.issued[20 * step - 1]) for step in (2, 5)]
    guess = advance(StepGuess(), [window], marks[0])
    assert (guess.period, guess.group) == (0, "0")
    assert advance(guess, [window], marks[1]).period == 20
    long = [_window(list(range(100)), first=first, pace=0.01) for first in (1, 401)]
    guess = advance(StepGuess(), [long[0]], StepMark(1, 0.8))
    guess = advance(guess, [long[1]], StepMark(6, 4.8))
    assert guess.period == 80


def test_where_reported_steps_do_not_tell_the_period_is_guessed() -> None:
    """As with collectives of which there are some more in each fifth step."""
    window = _window(([1, 2] * 5 + [9]) * 10)
    guess = advance(StepGuess(), [window], StepMark(5, 1.15))
    assert advance(guess, [window], StepMark(45, 9.95)).period == 11


def test_an_extra_collective_between_reported_steps_is_none_of_a_step() -> None:
    """A sum of losses each 50 steps does not move the step's end."""
    window = _window([1, 2] * 50 + [9])
    guess = advance(StepGuess(reported=(10, 0), group="0"), [window], StepMark(60, 10.15))
    assert guess.period == 2


def _looks(counts: list[int]) -> list[int]:
    """Return the periods that are seen; each look has one more step, of so many collectives."""
    guess, first, periods = StepGuess(), 1, []
    for step, count in enumerate(counts, 1):
        window = _window(list(range(count)), first=first)
        first += count
        guess = advance(guess, [window], StepMark(step, window.issued[-1]))
        periods.append(guess.period)
    return periods[2:]


@pytest.mark.parametrize(
    ("counts", "seen"),
    [
        pytest.param(([12] * 9 + [13]) * 3, {12}, id="a-loss-each-ten-steps"),
        pytest.param([12, 13] * 8, {12, 13}, id="a-loss-each-two-steps"),
        pytest.param([12] * 6 + [52] + [12] * 6, {12}, id="an-evaluation"),
    ],
)
def test_what_one_look_has_more_does_not_make_a_step_longer(
    counts: list[int], seen: set[int]
) -> None:
    """Each change would have the master forget what it has learned of the ranks."""
    periods = _looks(counts)
    assert set(periods) <= seen
    assert len(set(periods)) == 1


def test_a_step_that_becomes_longer_or_shorter_is_seen_at_the_second_look() -> None:
    """As where a script accumulates over more micro-batches from some step on."""
    assert _looks([12] * 6 + [20] * 3 + [8] * 3) == [12] * 4 + [12, 20, 20] + [20, 8, 8]
    assert _looks([52, 52, 12, 12, 12])[-1] == 12
