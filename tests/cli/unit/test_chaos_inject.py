"""Choice of the nodes that a cut is for, of those that are there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast_cli.chaos.inject import _cut_off
from holdfast_cli.chaos.schedule import Fault, FaultKind


@pytest.mark.parametrize(
    ("kind", "whom", "there", "found"),
    [
        (FaultKind.PARTITION, 0.0, [0, 1, 2, 3], [0]),
        (FaultKind.PARTITION_UP, 0.99, [0, 1, 2, 3], [3]),
        (FaultKind.PARTITION_HALF, 0.0, [0, 1, 2, 3], [0, 1]),
        (FaultKind.PARTITION_HALF, 0.8, [0, 1, 2, 3], [0, 3]),
        (FaultKind.PARTITION_HALF, 0.5, [1, 4, 6], [4]),
        (FaultKind.PARTITION_HALF, 0.5, [1], []),
        (FaultKind.PARTITION_HALF, 0.5, [], []),
        (FaultKind.PARTITION_ALL, 0.5, [1], [0, 1, 2]),
        (FaultKind.RESET, 0.5, [], []),
    ],
)
def test_a_cut_is_for_the_nodes_that_its_number_points_at(
    kind: FaultKind, whom: float, there: Sequence[int], found: list[int]
) -> None:
    """One, a half of those that are there (never all), or every node that has a proxy."""
    assert _cut_off(Fault(1, 0.0, kind, whom, 1.0), there, [2, 0, 1]) == found
