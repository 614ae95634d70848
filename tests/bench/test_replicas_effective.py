"""The effective time of simulated worlds follows from what failures cost."""

from __future__ import annotations

import dataclasses
import math

import pytest

from bench.replicas.effective import (
    HSDP_STALL,
    META_HOURS,
    PUBLISHED_STALL,
    Costs,
    mean_seconds,
    published_mean_seconds,
    stalled,
    world,
)


def test_the_rate_of_failures_grows_with_the_world() -> None:
    """128 nodes of 8 GPUs are Meta's 1,024; ten times as many fail ten times as often."""
    assert mean_seconds(128, META_HOURS) == pytest.approx(7.9 * 3600)
    assert mean_seconds(1_280, META_HOURS) == pytest.approx(790 * 3.6)


def test_all_shares_are_one() -> None:
    """Whatever failures cost; nothing is counted twice."""
    costs = Costs(stall=20.0, lost=30.0, shared=5_000.0, join=4.0, away=900.0)
    for mean_s in (30.0, 300.0, 30_000.0):
        spent = dataclasses.asdict(world(1_000, mean_s, costs))
        assert sum(spent.values()) == pytest.approx(1.0)
        assert all(one >= 0 for one in spent.values())


def test_a_stall_leaves_what_the_formula_says() -> None:
    """Exp(-stall / mean): a failure in a stall begins the wait anew."""
    for stall in (6.0, 60.0, 600.0):
        found = world(10_000, 600.0, Costs(stall=stall))
        assert found.effective == pytest.approx(math.exp(-stall / 600.0), abs=0.02)


def test_the_published_shares_of_fully_synchronous_training_and_ft_hsdp_come_out() -> None:
    """44 % by the fit of the rate, and 80 % for 3 minutes within the paper's rounding."""
    mean_s = published_mean_seconds()
    assert world(12_500, mean_s, Costs(stall=PUBLISHED_STALL)).effective == pytest.approx(
        0.44, abs=0.02
    )
    assert world(12_500, mean_s, Costs(stall=HSDP_STALL)).effective == pytest.approx(0.80, abs=0.03)


def test_each_cost_is_in_its_own_term() -> None:
    """A replica away for 100 s of each 1,000 on average is a thousandth of 100 replicas."""
    away = world(100, 1_000.0, Costs(stall=0.0, away=100.0))
    assert away.away == pytest.approx(0.001, rel=0.1)
    assert away.effective == pytest.approx(1 - away.away)
    lost = world(100, 1_000.0, Costs(stall=0.0, lost=10.0))
    assert (lost.stall, lost.join, lost.away) == (0, 0, 0)
    assert lost.lost == pytest.approx(0.01, rel=0.1)
    shared = world(101, 1_000.0, Costs(stall=0.0, shared=1_000.0))
    assert shared.shared == pytest.approx(0.01, rel=0.1)


def test_only_waits_of_all_are_lengthened() -> None:
    """Work that is made again does not hang on the size of the world."""
    costs = Costs(stall=1.0, lost=2.0, shared=3.0, join=4.0, away=5.0)
    assert stalled(costs, 10.0) == Costs(stall=10.0, lost=2.0, shared=3.0, join=40.0, away=5.0)
