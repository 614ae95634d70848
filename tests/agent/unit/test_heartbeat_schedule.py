"""Heartbeats: neighbours send at one instant, groups at others, whatever the clocks do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_agent.policies.heartbeat_schedule import TOGETHER, beside, pause

RANKS = st.integers(0, 100_000)
INTERVALS = st.floats(0.1, 60)
WALLS = st.floats(0, 4e9)


@given(RANKS, INTERVALS, WALLS)
def test_the_next_one_is_half_to_one_and_a_half_intervals_away(
    rank: int, interval: float, wall: float
) -> None:
    """Wherever the wall clock stands, no node falls silent and none sends twice in a row."""
    assert interval / 2 <= pause(rank, interval, wall) <= 1.5 * interval


@given(RANKS, INTERVALS, WALLS, st.floats(0, 0.4))
def test_who_was_late_by_some_is_back_in_step(
    rank: int, interval: float, wall: float, late: float
) -> None:
    """Lateness does not add up: the moments stay where they are on the wall clock."""
    due = wall + pause(rank, interval, wall)
    again = pause(rank, interval, due + late * interval)
    assert again == pytest.approx((1 - late) * interval, abs=1e-5)


def test_neighbours_send_together_and_groups_apart() -> None:
    """1,000 nodes: 32 at an instant, and the instants are spread over the interval."""
    wall = 1.8e9
    moments: dict[float, int] = {}
    for rank in range(1000):
        moment = round((wall + pause(rank, 1.0, wall)) % 1.0, 6)
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
    due = wall + beside(rank, interval, times * interval, wall)
    beats = (due - wall - pause(rank, interval, wall)) / interval
    assert beats == pytest.approx(round(beats), abs=1e-5)


@given(RANKS, INTERVALS, INTERVALS, WALLS)
def test_other_work_has_its_own_period(
    rank: int, interval: float, period: float, wall: float
) -> None:
    """Rare heartbeats make neither the lease nor the checks rarer."""
    assert period / 2 <= beside(rank, interval, period, wall) <= 1.5 * period
