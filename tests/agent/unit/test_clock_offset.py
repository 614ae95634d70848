"""The offset of a node's clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_agent.policies.clock_offset import ClockAnswer, ClockReading, estimate, was_set

_WAY = st.floats(0.0, 0.5)


@given(st.floats(-1e4, 1e4), st.lists(st.tuples(_WAY, _WAY), min_size=1, max_size=8))
def test_the_truth_is_within_the_error(offset: float, ways: list[tuple[float, float]]) -> None:
    """However unequal the ways there and back are."""
    answers, now = [], 1e5
    for there, back in ways:
        answers.append(ClockAnswer(now, now + there + offset, now + there + back))
        now += there + back + 1.0
    found = estimate(answers, now)
    assert found is not None
    assert abs(found.seconds - offset) <= found.error + 1e-6


def test_the_shortest_way_counts_until_it_is_old() -> None:
    """A sample of an hour ago may be off by the drift of the clocks."""
    good, slow = ClockAnswer(0.0, 10.0005, 0.001), ClockAnswer(3600.0, 3610.05, 3600.1)
    early = estimate([good], 1.0)
    assert early is not None
    assert early.error < 0.001
    late = estimate([good, slow], 3601.0)
    assert late is not None
    assert 0.05 <= late.error < 0.06


def test_without_an_answer_there_is_no_estimate() -> None:
    """Nor with one during which the clock was set back."""
    assert estimate([], 5.0) is None
    assert estimate([ClockAnswer(9.0, 9.0, 8.0)], 9.0) is None


@pytest.mark.parametrize("by", [0.05, -0.05, 3600.0])
def test_answers_from_before_a_clock_was_set_do_not_count(by: float) -> None:
    """However short their way was: 50 ms would make a healthy node of 0.1 s a step a straggler."""
    quick = [ClockAnswer(at, at + 10.0005, at + 0.001) for at in (0.0, 5.0, 10.0)]
    slow = ClockAnswer(15.0, 25.01 + by, 15.02)
    found = estimate([*quick, slow], 16.0)
    assert found is not None
    assert abs(found.seconds - 10.0 - by) <= found.error


@pytest.mark.parametrize(
    ("unix", "expected"), [(5.0, False), (5.0005, False), (5.01, True), (4.9, True)]
)
def test_a_clock_that_was_set_shows_beside_the_monotonic_one(unix: float, expected: bool) -> None:  # noqa: FBT001
    """A process that waits between its two readings does not."""
    before = ClockReading(unix=1e9, monotonic=100.0)
    assert was_set(before, ClockReading(unix=1e9 + unix, monotonic=105.0)) is expected
