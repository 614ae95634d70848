"""Goodput of DDP under kills counts each step once, by the ranks that made it."""

from __future__ import annotations

import pytest

from bench.local_sgd.ddp_kills import RANKS, figures
from bench.recovery.steplog import Event


def _step(t: float, step: int, round_id: int, world: int = RANKS) -> list[Event]:
    return [
        Event(t=t, event="step", rank=rank, pid=100 * round_id + rank, round=round_id, world=world,
              step=step)
        for rank in range(world)
    ]  # fmt: skip


def test_a_step_that_is_made_again_is_no_gain() -> None:
    """Steps 1 to 4 at one a second, a restart that makes step 4 again, then two by fewer ranks."""
    steps = [(1, 1, 1), (2, 2, 1), (3, 3, 1), (4, 4, 1), (9, 4, 2), (10, 5, 2)]
    events = [event for t, step, round_id in steps for event in _step(float(t), step, round_id)]
    events += _step(12.0, 6, 3, world=2)
    found = figures(events, 1.0, 13.0)
    assert found["steps made again"] == 1
    assert found["seconds a step without a change"] == 1.0
    assert found["goodput"] == pytest.approx((4 * RANKS + 2) / (RANKS * 12))
