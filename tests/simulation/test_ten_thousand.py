"""Ten thousand nodes: a world is decided and every agent told, on the simulated network."""

from __future__ import annotations

import pytest

from simulation.crowd import told_seconds

NODES = 10_000
BAR_SECONDS = 1.0
MARGIN = 2.0
"""The machine of a test run may be shared; the test prints the time itself."""


@pytest.mark.slow
def test_a_world_of_ten_thousand_is_decided_and_delivered() -> None:
    """From the death of a worker to the last agent that has its assignment, CPU time."""
    spent = told_seconds(NODES)
    print(f"{NODES} agents told after {spent:.2f} s of CPU time")
    assert spent < BAR_SECONDS * MARGIN
