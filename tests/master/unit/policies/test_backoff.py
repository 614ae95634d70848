"""Wait before a restart without progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.failure import pause
from holdfast_master.settings import CoreSettings

USUAL = CoreSettings(backoff_seconds=1.0, longest_backoff_seconds=30.0)


@pytest.mark.parametrize(
    ("in_a_row", "seconds"),
    [
        (0, 0.0),
        (1, 0.0),
        (2, 1.0),
        (3, 2.0),
        (4, 4.0),
        (5, 8.0),
        (6, 16.0),
        (7, 30.0),
        (9999, 30.0),
    ],
)
def test_the_pause_doubles_up_to_its_bound(in_a_row: int, seconds: float) -> None:
    """The first restart is at once; the reason names number and time."""
    found = pause(in_a_row, USUAL)
    assert found.seconds == seconds
    if seconds:
        assert f"restart {in_a_row} in a row" in found.reason
        assert f"{seconds:g} s" in found.reason


@given(st.integers(0, 10_000), st.floats(0.01, 10.0), st.floats(10.0, 100.0))
def test_it_never_shrinks_and_never_exceeds_its_bound(
    in_a_row: int, first: float, longest: float
) -> None:
    """Whatever the schedule is; and it is the same each time that it is asked for."""
    settings = CoreSettings(backoff_seconds=first, longest_backoff_seconds=longest)
    found, following = pause(in_a_row, settings), pause(in_a_row + 1, settings)
    assert 0 <= found.seconds <= following.seconds <= longest
    assert found == pause(in_a_row, settings)
