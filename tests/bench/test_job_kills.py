"""Goodput under kills counts each step once, by the ranks that made it."""

from __future__ import annotations

import pytest

from bench.local_sgd.job_kills import RANKS, figures, figures_of_replicas
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


def test_steps_of_replicas_count_once_each_and_a_killed_one_is_missed() -> None:
    """One of four is away for half of the window; the pace is that of rounds of all four."""
    events = [
        Event(t=step / 2, event="step", rank=0, pid=pid, round=1 + (step > 40), world=RANKS,
              step=step)
        for pid in range(RANKS) for step in range(1, 81) if pid or step <= 40
    ]  # fmt: skip
    events += [Event(t=0.0, event="joined", rank=0, pid=9)]
    found = figures_of_replicas(sorted(events, key=lambda one: one.t), 0.0, 40.0)
    assert found["seconds a step without a change"] == 0.5
    assert found["processes begun again"] == 0
    assert found["goodput"] == pytest.approx(1 - 0.5 / RANKS)
