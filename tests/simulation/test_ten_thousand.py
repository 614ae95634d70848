"""Ten thousand nodes on the simulated network: a world is decided, told, and judged."""

from __future__ import annotations

import pytest

from simulation.crowd import judged, told_seconds
from simulation.oracle.health import NAMED_SECONDS

NODES = 10_000
BAR_SECONDS = 1.0
SLICE_SECONDS = 0.05
KEPT_BYTES = 1e8
MARGIN = 2.0
"""The machine of a test run may be shared; the test prints the time itself."""


@pytest.mark.extended(
    "the growth of the work with the world is tested by itself",
    held_by=[
        "master/unit/job/test_core_at_scale.py::test_a_recovery_of_all_nodes_is_decided_in_proportion_to_them",
        "simulation/test_ten_thousand.py::test_a_thousand_ranks_are_judged_without_holding_the_master_up",
    ],
)
@pytest.mark.slow
def test_a_world_of_ten_thousand_is_decided_and_delivered() -> None:
    """From the death of a worker to the last agent that has its assignment, CPU time."""
    spent = told_seconds(NODES)
    print(f"{NODES} agents told after {spent:.2f} s of CPU time")
    assert spent < BAR_SECONDS * MARGIN


@pytest.mark.slow
def test_a_thousand_ranks_are_judged_without_holding_the_master_up() -> None:
    """A slow one is named as soon as in a small world; CPU time of each slice, samples kept."""
    _judge(NODES // 10)


@pytest.mark.extended(
    "a minute of one core; slices of the judgement are compared with the whole in a smaller world",
    held_by=[
        "simulation/test_ten_thousand.py::test_a_thousand_ranks_are_judged_without_holding_the_master_up",
        "master/unit/job/test_stragglers.py::test_a_large_world_is_judged_in_slices_with_the_same_result",
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(600)  # the test judges CPU seconds; agents of 10,000 nodes take minutes
def test_ten_thousand_ranks_are_judged_without_holding_the_master_up() -> None:
    """A slow one is named as soon as in a small world; CPU time of each slice, samples kept."""
    _judge(NODES)


def _judge(nodes: int) -> None:
    cost = judged(nodes, 16.0, 20.0)
    longest = sorted(cost.slices)[-len(cost.slices) // 100]
    print(
        f"{nodes} ranks: a sample {1e6 * cost.taking:.0f} µs, {len(cost.slices)} slices of at most"
    )
    print(
        f"{1e3 * max(cost.slices):.0f} ms, 99 % below {1e3 * longest:.0f} ms; a slow node is named"
    )
    print(f"after {cost.named_after:.1f} s; {cost.kept / 1e6:.0f} MB kept")
    assert cost.named_after < NAMED_SECONDS
    assert longest < SLICE_SECONDS * MARGIN
    assert cost.kept < KEPT_BYTES
