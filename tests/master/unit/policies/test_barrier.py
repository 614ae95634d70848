"""After which step every rank is to save and stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.barrier import FASTEST_PACE, UNKNOWN_PACE, Sighting, choose, reach


def seen(step: int, pace: float = 0.1, since: float = 0.0, age: float = 0.0) -> Sighting:
    """A rank's last report."""
    return Sighting(step=step, step_seconds=pace, since_step_seconds=since, age=age)


TABLE = [
    # sightings, latency, tries, not before, step
    ([seen(100)], 0.05, 0, 0, 103),
    ([seen(100), seen(101)], 0.05, 0, 0, 104),
    ([seen(100, age=0.5)], 0.05, 0, 0, 108),
    ([seen(100, since=0.08, age=0.25)], 0.05, 0, 0, 106),
    ([seen(100, since=600.0, age=0.25)], 0.05, 0, 0, 106),
    ([seen(100)], 0.5, 0, 0, 112),
    ([seen(100)], 0.05, 1, 0, 106),
    ([seen(100)], 0.05, 2, 0, 112),
    ([seen(100)], 0.05, 0, 200, 203),
    ([seen(7, pace=0.0)], 0.05, 0, 0, 11),
    ([], 0.05, 0, 40, 44),
]


@pytest.mark.parametrize(("sightings", "latency", "tries", "floor", "step"), TABLE)
def test_step(sightings: list[Sighting], latency: float, tries: int, floor: int, step: int) -> None:
    """The newest step as it must be by now, twice the latency, and two; doubled by each try."""
    choice = choose(sightings, latency=latency, tries=tries, not_before=floor)
    assert choice.step == step
    assert "margin" in choice.reason


def test_how_far_the_ranks_have_come() -> None:
    """They went on since their report, unless they stood still by then."""
    assert reach([], 7) == 7
    assert reach([seen(100, age=0.35)], 0) == 103
    assert reach([seen(100, since=0.3, age=0.35)], 0) == 100
    assert reach([seen(100, pace=0.0, age=0.1)], 0) == 100


SIGHTINGS = st.lists(
    st.builds(seen, st.integers(0, 10**6), st.floats(0, 5), st.floats(0, 5), st.floats(0, 5)),
    max_size=6,
)


@given(SIGHTINGS, st.floats(0.001, 2), st.integers(0, 3), st.integers(0, 10**6))
def test_no_rank_can_have_begun_the_step(
    sightings: list[Sighting], latency: float, tries: int, floor: int
) -> None:
    """Each rank, going on at its pace, reaches the step after the barrier has reached it."""
    choice = choose(sightings, latency=latency, tries=tries, not_before=floor)
    assert choice.step >= floor + 2
    assert choice.expected_seconds > latency
    for item in sightings:
        pace = max(item.step_seconds, FASTEST_PACE) if item.step_seconds else UNKNOWN_PACE
        since = min(item.since_step_seconds, pace)  # the next step is not complete yet
        by_then = item.step + (item.age + since + latency) / pace
        assert by_then < choice.step
