"""Changes of a running world's members, and their time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.rendezvous import Bounds
from holdfast_master.policies.scaling import Fleet, Keep, Purpose, Rescale, decide
from holdfast_master.settings import CoreSettings

SETTINGS = CoreSettings(grow_window_seconds=5.0, grow_horizon_seconds=600.0)
CHEAP, DEAR = 1.0, 400.0
"""s: cost of a rescale."""
FOUR = Bounds(minimum=2, replicas=4, maximum=8)
PAIRS = Bounds(minimum=2, replicas=4, maximum=8, unit=2)


def fleet(members: int, spares: int = 0, leaving: int = 0, **more: object) -> Fleet:
    """Nodes of a job that wants four."""
    values: dict[str, object] = {
        "expected": 0,
        "spare_since": 100.0 if spares else None,
        "bounds": FOUR,
        "cost": CHEAP,
    }
    return Fleet(members=members, spares=spares, leaving=leaving, **(values | more))  # type: ignore[arg-type]


TABLE = [
    (fleet(4), 100.0, Keep()),
    (fleet(4, spares=2), 100.0, Keep()),
    (fleet(3), 100.0, Keep()),
    (fleet(3, spares=1), 100.0, "from 3 to 4"),
    (fleet(2, spares=1), 100.0, "from 2 to 3"),
    (fleet(2, spares=1, expected=1), 100.0, Keep(105.0)),
    (fleet(2, spares=1, expected=1), 104.9, Keep(105.0)),
    (fleet(2, spares=1, expected=1), 105.0, "from 2 to 3"),
    (fleet(2, spares=2, expected=1), 100.0, "from 2 to 4"),
    (fleet(2, spares=1, expected=1, spare_since=None), 105.0, Keep(110.0)),
    (fleet(3, spares=1, cost=DEAR), 100.0, Keep()),
    (fleet(2, spares=2, bounds=PAIRS), 100.0, "from 2 to 4"),
    (fleet(2, spares=1, bounds=PAIRS), 100.0, Keep()),
    (fleet(3, spares=1, starts_until=110.0), 100.0, Keep(110.0)),
    (fleet(3, spares=1, starts_until=110.0), 110.0, "from 3 to 4"),
    (fleet(3, spares=1, starts_until=math.inf), 1e9, Keep()),
    (fleet(4, leaving=1, starts_until=math.inf), 100.0, "goes on with 3"),
    (fleet(6, starts_until=math.inf), 100.0, "4 nodes are wanted"),
    (fleet(6), 100.0, "4 nodes are wanted"),
    (fleet(4, leaving=1), 100.0, "goes on with 3"),
    (fleet(4, leaving=1, spares=1), 100.0, "goes on with 4"),
    (fleet(2, leaving=1), 100.0, "too few are left"),
    (fleet(4, leaving=1, cost=DEAR), 100.0, "goes on with 3"),
]


@pytest.mark.parametrize(("view", "now", "expected"), TABLE)
def test_verdict(view: Fleet, now: float, expected: Keep | str) -> None:
    """Leaving and shrinking at once, growing when it pays and nobody else is expected soon."""
    verdict = decide(view, SETTINGS, now)
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
    verdict = decide(view, SETTINGS, 100.0)
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
    verdict = decide(view, SETTINGS, 1000.0)
    if isinstance(verdict, Rescale) and verdict.size:
        assert bounds.fit(verdict.size) == verdict.size
        rest = members - leaving + spares - verdict.size
        assert rest >= 0
        after = fleet(verdict.size, rest, 0, bounds=bounds, expected=expected)
        assert decide(after, SETTINGS, 1000.0) == Keep()
