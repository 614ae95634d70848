"""The instants at which agents look at their ranks' collectives."""

from __future__ import annotations

import pytest

from holdfast_agent.policies.sample_schedule import LONGEST_SECONDS, period, until_next


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
    assert period(wanted, longest) == found


@pytest.mark.parametrize("own", [1.0, 2.0, 4.0, 32.0])
def test_nodes_meet_at_the_instants_of_the_one_that_looks_most_seldom(own: float) -> None:
    """Whenever they begin, and whatever their own periods are."""
    for start in (1e9, 1e9 + 0.3, 1e9 + 17.77, 1e9 + 31.999):
        instants, now = set(), start
        while now < start + 200:
            now += until_next(own, now)
            instants.add(round(now, 3))
        assert all(instant % own == 0 for instant in instants)
        shared = {at for at in instants if at % LONGEST_SECONDS == 0}
        assert len(shared) >= 5


def test_a_look_that_was_late_is_followed_by_one_at_the_next_instant() -> None:
    """But not at once."""
    assert until_next(4.0, 1e9 + 0.1) == pytest.approx(3.9)
    assert until_next(4.0, 1e9 + 3.0) == pytest.approx(5.0)
    assert until_next(4.0, 1e9 - 0.001) == pytest.approx(4.001)
