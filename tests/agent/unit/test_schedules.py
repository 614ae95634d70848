"""Instants of heartbeats and of looks at collectives, and the offset of a node's clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_agent.policies.schedules import (
    LONGEST_SECONDS,
    TOGETHER,
    ClockAnswer,
    aligned_pause,
    estimate,
    sample_period,
    until_multiple,
    was_set,
)

RANKS = st.integers(0, 100_000)
INTERVALS = st.floats(0.1, 60)
WALLS = st.floats(0, 4e9)


@given(RANKS, INTERVALS, WALLS)
def test_the_next_one_is_half_to_one_and_a_half_intervals_away(
    rank: int, interval: float, wall: float
) -> None:
    """Wherever the wall clock stands, no node falls silent and none sends twice in a row."""
    assert interval / 2 <= aligned_pause(rank, interval, interval, wall) <= 1.5 * interval


@given(RANKS, INTERVALS, WALLS, st.floats(0, 0.4))
def test_who_was_late_by_some_is_back_in_step(
    rank: int, interval: float, wall: float, late: float
) -> None:
    """Lateness does not add up: the moments stay where they are on the wall clock."""
    due = wall + aligned_pause(rank, interval, interval, wall)
    again = aligned_pause(rank, interval, interval, due + late * interval)
    assert again == pytest.approx((1 - late) * interval, abs=1e-5)


def test_neighbours_send_together_and_groups_apart() -> None:
    """1,000 nodes: 32 at an instant, and the instants are spread over the interval."""
    wall = 1.8e9
    moments: dict[float, int] = {}
    for rank in range(1000):
        moment = round((wall + aligned_pause(rank, 1.0, 1.0, wall)) % 1.0, 6)
        moments[moment] = moments.get(moment, 0) + 1
    assert max(moments.values()) == TOGETHER
    ordered = sorted(moments)
    gaps = [b - a for a, b in zip(ordered, [*ordered[1:], ordered[0] + 1], strict=True)]
    assert len(gaps) == 32
    assert max(gaps) < 3 * min(gaps)


@given(RANKS, st.sampled_from([0.5, 1.0, 2.0]), st.integers(1, 8), WALLS)
def test_work_of_a_multiple_falls_on_a_heartbeat(
    rank: int, interval: float, times: int, wall: float
) -> None:
    """The agent wakes once for both; their distance is a whole number of intervals."""
    due = wall + aligned_pause(rank, interval, times * interval, wall)
    beats = (due - wall - aligned_pause(rank, interval, interval, wall)) / interval
    assert beats == pytest.approx(round(beats), abs=1e-5)


@given(RANKS, INTERVALS, INTERVALS, WALLS)
def test_other_work_has_its_own_period(
    rank: int, interval: float, period: float, wall: float
) -> None:
    """Rare heartbeats make neither the lease nor the checks rarer."""
    assert period / 2 <= aligned_pause(rank, interval, period, wall) <= 1.5 * period


@pytest.mark.parametrize(
    ("wanted", "longest", "found"),
    [
        (0.0, 30.0, 1.0),
        (1.5, 30.0, 1.0),
        (1.6, 30.0, 2.0),
        (3.2, 30.0, 4.0),
        (5.7, 30.0, 4.0),
        (6.4, 30.0, 8.0),
        (500.0, 15.0, 8.0),
        (500.0, 1e9, LONGEST_SECONDS),
        (500.0, 0.3, 1.0),
    ],
)
def test_a_period_is_the_power_of_two_that_the_cost_allows(
    wanted: float, longest: float, found: float
) -> None:
    """At most a quarter longer than wanted, and never beyond its bound but for the shortest."""
    assert sample_period(wanted, longest) == found


@pytest.mark.parametrize("own", [1.0, 2.0, 4.0, 32.0])
def test_nodes_meet_at_the_instants_of_the_one_that_looks_most_seldom(own: float) -> None:
    """Whenever they begin, and whatever their own periods are."""
    for start in (1e9, 1e9 + 0.3, 1e9 + 17.77, 1e9 + 31.999):
        instants, now = set(), start
        while now < start + 200:
            now += until_multiple(own, now)
            instants.add(round(now, 3))
        assert all(instant % own == 0 for instant in instants)
        shared = {at for at in instants if at % LONGEST_SECONDS == 0}
        assert len(shared) >= 5


def test_a_look_that_was_late_is_followed_by_one_at_the_next_instant() -> None:
    """But not at once."""
    assert until_multiple(4.0, 1e9 + 0.1) == pytest.approx(3.9)
    assert until_multiple(4.0, 1e9 + 3.0) == pytest.approx(5.0)
    assert until_multiple(4.0, 1e9 - 0.001) == pytest.approx(4.001)


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
    assert was_set(1e9 - 100.0, 1e9 + unix - 105.0) is expected
