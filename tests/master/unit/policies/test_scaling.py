"""Changes of a running world's members, and their time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.rendezvous import Bounds
from holdfast_master.policies.scaling import Economy, Fleet, Keep, Purpose, Rescale, decide

CHEAP = Economy(window=5.0, horizon=600.0, cost=1.0)
DEAR = Economy(window=5.0, horizon=600.0, cost=400.0)
FOUR = Bounds(minimum=2, replicas=4, maximum=8)
PAIRS = Bounds(minimum=2, replicas=4, maximum=8, unit=2)


def fleet(members: int, spares: int = 0, leaving: int = 0, **more: object) -> Fleet:
    """Nodes of a job that wants four."""
    values: dict[str, object] = {
        "expected": 0,
        "spare_since": 100.0 if spares else None,
        "bounds": FOUR,
    }
    return Fleet(members=members, spares=spares, leaving=leaving, **(values | more))  # type: ignore[arg-type]


TABLE = [
    (fleet(4), CHEAP, 100.0, Keep()),
    (fleet(4, spares=2), CHEAP, 100.0, Keep()),
    (fleet(3), CHEAP, 100.0, Keep()),
    (fleet(3, spares=1), CHEAP, 100.0, "from 3 to 4"),
    (fleet(2, spares=1), CHEAP, 100.0, "from 2 to 3"),
    (fleet(2, spares=1, expected=1), CHEAP, 100.0, Keep(105.0)),
    (fleet(2, spares=1, expected=1), CHEAP, 104.9, Keep(105.0)),
    (fleet(2, spares=1, expected=1), CHEAP, 105.0, "from 2 to 3"),
    (fleet(2, spares=2, expected=1), CHEAP, 100.0, "from 2 to 4"),
    (fleet(2, spares=1, expected=1, spare_since=None), CHEAP, 105.0, Keep(110.0)),
    (fleet(3, spares=1), DEAR, 100.0, Keep()),
    (fleet(2, spares=2, bounds=PAIRS), CHEAP, 100.0, "from 2 to 4"),
    (fleet(2, spares=1, bounds=PAIRS), CHEAP, 100.0, Keep()),
    (fleet(3, spares=1, starts_until=110.0), CHEAP, 100.0, Keep(110.0)),
    (fleet(3, spares=1, starts_until=110.0), CHEAP, 110.0, "from 3 to 4"),
    (fleet(3, spares=1, starts_until=math.inf), CHEAP, 1e9, Keep()),
    (fleet(4, leaving=1, starts_until=math.inf), CHEAP, 100.0, "goes on with 3"),
    (fleet(6, starts_until=math.inf), CHEAP, 100.0, "4 nodes are wanted"),
    (fleet(6), CHEAP, 100.0, "4 nodes are wanted"),
    (fleet(4, leaving=1), CHEAP, 100.0, "goes on with 3"),
    (fleet(4, leaving=1, spares=1), CHEAP, 100.0, "goes on with 4"),
    (fleet(2, leaving=1), CHEAP, 100.0, "too few are left"),
    (fleet(4, leaving=1), DEAR, 100.0, "goes on with 3"),
]


@pytest.mark.parametrize(("view", "economy", "now", "expected"), TABLE)
def test_verdict(view: Fleet, economy: Economy, now: float, expected: Keep | str) -> None:
    """Leaving and shrinking at once, growing when it pays and nobody else is expected soon."""
    verdict = decide(view, economy, now)
    if isinstance(expected, Keep):
        assert verdict == expected
    else:
        assert isinstance(verdict, Rescale)
        assert expected in verdict.reason


PURPOSES = [
    (fleet(3, spares=1), Purpose.GROW, 4),
    (fleet(6), Purpose.SHRINK, 4),
    (fleet(4, leaving=2), Purpose.DRAIN, 2),
    (fleet(2, leaving=1), Purpose.DRAIN, 0),
]


@pytest.mark.parametrize(("view", "purpose", "size"), PURPOSES)
def test_purpose_and_size(view: Fleet, purpose: Purpose, size: int) -> None:
    """The verdict names the change's purpose and the next world's size."""
    verdict = decide(view, CHEAP, 100.0)
    assert isinstance(verdict, Rescale)
    assert (verdict.purpose, verdict.size) == (purpose, size)


BOUNDS = st.builds(
    Bounds,
    minimum=st.integers(1, 6),
    replicas=st.integers(1, 10),
    maximum=st.integers(1, 10),
    unit=st.integers(1, 3),
)


@given(BOUNDS, st.integers(1, 10), st.integers(0, 5), st.integers(0, 5), st.integers(0, 3))
def test_the_next_world_fits_and_the_verdict_comes_to_rest(
    bounds: Bounds, members: int, spares: int, leaving: int, expected: int
) -> None:
    """The size fits the bounds; with that size nothing is left to change."""
    leaving = min(leaving, members)
    view = fleet(members, spares, leaving, bounds=bounds, expected=expected)
    verdict = decide(view, CHEAP, 1000.0)
    if isinstance(verdict, Rescale) and verdict.size:
        assert bounds.fit(verdict.size) == verdict.size
        rest = members - leaving + spares - verdict.size
        assert rest >= 0
        after = fleet(verdict.size, rest, 0, bounds=bounds, expected=expected)
        assert decide(after, CHEAP, 1000.0) == Keep()
