"""The interval of Young and Daly for two tiers: figures, bounds, and what it says of itself."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies import failure_rate, interval
from holdfast_master.policies.failure_rate import (
    LONGEST_ASSUMED,
    NODE_SECONDS,
    Observed,
    Rates,
    counts,
    learn,
)
from holdfast_master.policies.interval import Cost, Costs, Every, IntervalVerdict, daly, decide
from holdfast_wire.messages import Tier

DAY = 86_400.0


def pair(memory: int, storage: int) -> Every:
    """Steps between saves to each tier."""
    return {Tier.MEMORY: memory, Tier.STORAGE: storage}


AUTO, OLD = pair(0, 0), pair(1, 100)


def costs(
    memory: float = 0.1, storage: float | None = 2.0, durable: float = 5.0, step: float = 1.0
) -> Costs:
    """Return the costs of a job that measured these values."""
    tiers = {Tier.MEMORY: Cost(stop=memory), Tier.STORAGE: Cost(stop=storage, durable=durable)}
    return Costs(step=step, tiers=tiers)


def rates(memory: float = DAY, storage: float = DAY) -> Rates:
    """Means between failures, s."""
    by_tier = {Tier.MEMORY: 1 / memory, Tier.STORAGE: 1 / storage}
    return Rates(by_tier=by_tier, reason="(known)")


def observed(memory: int, storage: int, seconds: float) -> Observed:
    """Failures by what they went back to."""
    return Observed(failures={Tier.MEMORY: memory, Tier.STORAGE: storage}, seconds=seconds)


def whole(rate: Rates) -> float:
    """Mean time between failures of any kind, s."""
    return 1 / sum(rate.by_tier.values())


def choose(cost: Costs, rate: Rates, now: Every = OLD, fixed: Every = AUTO) -> IntervalVerdict:
    """The verdict."""
    return decide(cost, rate, now, fixed=fixed)


def test_rare_failures_are_youngs_formula_and_frequent_ones_dalys() -> None:
    """Both agree where a save costs next to nothing; Daly's is the mean time itself at the end."""
    assert daly(1e-3, 1e6) == pytest.approx(math.sqrt(2 * 1e-3 * 1e6), rel=1e-3)
    assert daly(60.0, 600.0) == pytest.approx(
        math.sqrt(2 * 60 * 600) * (1 + math.sqrt(0.05) / 3 + 0.05 / 9) - 60.0
    )
    assert daly(1200.0, 600.0) == 600.0


TABLE = [
    # costs, rates, memory, storage
    (costs(), rates(), 141, 564),
    (costs(memory=0.1, storage=0.1), rates(), 93, 93),  # one tier: storage costs no more
    (costs(memory=0.1, storage=None), rates(), 100, 100),  # as before, until one is measured
    (costs(), rates(memory=600, storage=600), 11, 44),
    (costs(), rates(memory=600, storage=30 * DAY), 11, 3146),
    (costs(memory=1e-6), rates(), 1, 587),  # a save that costs nothing: each step
    (costs(step=600.0), rates(), 1, 1),  # a step is longer than any interval
    (costs(storage=0.2, durable=900.0), rates(memory=600, storage=600), 11, 1133),
    (costs(), rates(memory=900 * DAY, storage=900 * DAY), 3600, 3600),  # an hour at the most
]


@pytest.mark.parametrize(("cost", "rate", "memory", "storage"), TABLE)
def test_intervals(cost: Costs, rate: Rates, memory: int, storage: int) -> None:
    """An interval weighs its tier's cost against the failures that it serves, within bounds."""
    assert choose(cost, rate).every == pair(memory, storage)


def test_numbers_in_the_spec_hold_and_the_other_tier_is_fitted_to_them() -> None:
    """Somebody's number is never changed; two of them leave nothing to compute."""
    both = pair(7, 30)
    verdict = choose(costs(), rates(), fixed=both)
    assert verdict.every == both
    assert verdict.changed
    assert verdict.reasons[Tier.MEMORY] == "the job's spec says so"
    assert choose(costs(), rates(), fixed=pair(50, 0)).every == pair(50, 550)
    assert choose(costs(), rates(), fixed=pair(0, 40)).every == pair(40, 40)


def test_a_number_that_bounds_the_tier_before_it_is_named() -> None:
    """Who fixed storage at 40 steps reads why memory is not saved more rarely; else nothing."""
    words = "; at most as far apart as saves to storage (40)"
    assert choose(costs(), rates(), fixed=pair(0, 40)).reasons[Tier.MEMORY].endswith(words)
    for fixed in (pair(0, 10**6), pair(50, 40), AUTO):
        assert (
            "at most as far apart" not in choose(costs(), rates(), fixed=fixed).reasons[Tier.MEMORY]
        )


def test_small_differences_change_nothing() -> None:
    """A quarter more or less is not worth it; a number in the spec always is."""
    best = choose(costs(), rates()).every
    memory, storage = best[Tier.MEMORY], best[Tier.STORAGE]
    near = pair(round(memory * 1.2), round(storage / 1.2))
    verdict = choose(costs(), rates(), now=near)
    assert (verdict.every, verdict.changed) == (near, False)
    assert f"{memory} and {storage} would hardly be better" in verdict.reasons[Tier.MEMORY]
    far = pair(memory, round(storage * 1.4))
    assert choose(costs(), rates(), now=far).every == best
    often = near[Tier.MEMORY] + 1
    verdict = choose(costs(), rates(), now=near, fixed=pair(often, 0))
    assert verdict.every[Tier.MEMORY] == often


def test_it_says_what_it_was_made_from() -> None:
    """For people: costs, step time, failures and how those are known."""
    verdict = choose(costs(), learn(observed(1, 1, 7200), nodes=4))
    for text in verdict.reasons.values():
        assert text.startswith("sqrt(2 × cost × time between failures), as by Young and Daly: ")
    assert "stops training for 100 ms" in verdict.reasons[Tier.MEMORY]
    assert "a step takes 1 s" in verdict.reasons[Tier.MEMORY]
    assert "learned from 2 failures in 2 h of training" in verdict.reasons[Tier.MEMORY]
    assert "a save costs 2 s of training" in verdict.reasons[Tier.STORAGE]
    assert "a node is lost every" in verdict.reasons[Tier.STORAGE]
    unmeasured = choose(costs(storage=None), rates()).reasons[Tier.STORAGE]
    assert unmeasured == "unchanged until a save to storage has been measured"


SECONDS = st.floats(1e-7, 1e5)


@given(
    st.builds(costs, step=SECONDS, memory=SECONDS, storage=st.none() | SECONDS, durable=SECONDS),
    st.builds(rates, memory=st.floats(1.0, 1e12), storage=st.floats(1.0, 1e12)),
    st.builds(pair, memory=st.integers(0, 10**6), storage=st.integers(1, 10**6)),
    st.builds(pair, memory=st.integers(0, 10**6), storage=st.integers(0, 10**6)),
)
def test_any_input_leads_to_a_schedule(cost: Costs, rate: Rates, now: Every, fixed: Every) -> None:
    """New intervals are at least 1, and deciding again changes nothing."""
    verdict = choose(cost, rate, now=now, fixed=fixed)
    assert verdict.changed == (verdict.every != now)
    if verdict.changed:
        assert min(verdict.every.values()) >= 1
    again = choose(cost, rate, now=verdict.every, fixed=fixed)
    assert not again.changed or cost.tiers[Tier.STORAGE].stop is None


class Place(enum.IntEnum):
    """Three tiers: a copy on another node stands between memory and storage."""

    MEMORY = 1
    PEER = 2
    STORAGE = 3


def _waste(every: Mapping[Any, int], cost: Costs, rate: Rates) -> float:
    """Part of the time that goes into saves and is lost by failures, to the first order."""
    places = sorted(every)
    stops = [0.0, *(cost.tiers[place].stop or 0.0 for place in places)]
    added = [after - before for before, after in itertools.pairwise(stops)]
    saves = sum(more / every[place] for place, more in zip(places, added, strict=True))
    lost = sum(rate.by_tier[place] * every[place] for place in places)
    return saves / cost.step + lost * cost.step / 2


@pytest.mark.parametrize("means", [(3600, 86_400, 864_000), (600, 600, 600), (9e5, 900, 9e5)])
@pytest.mark.parametrize("stops", [(0.1, 0.5, 3.0), (0.2, 0.2, 0.2), (0.01, 4.0, 5.0)])
def test_a_third_tier_needs_its_cost_and_its_rate_alone(
    monkeypatch: pytest.MonkeyPatch, stops: tuple[float, ...], means: tuple[float, ...]
) -> None:
    """Nothing else names it; what is chosen wastes as little as the best of a fine grid."""
    row = failure_rate.BY_TIER[Tier.MEMORY]
    monkeypatch.setattr(interval, "BY_TIER", dict.fromkeys(Place, row))
    monkeypatch.setattr(interval, "word", str)
    tiers: Any = {place: Cost(stop=stop) for place, stop in zip(Place, stops, strict=True)}
    by_tier: Any = {place: 1 / mean for place, mean in zip(Place, means, strict=True)}
    cost, rate = Costs(step=0.5, tiers=tiers), Rates(by_tier=by_tier, reason="(known)")
    none: Any = dict.fromkeys(Place, 0)
    every: Any = decide(cost, rate, none, fixed=none).every
    assert every[Place.PEER] % every[Place.MEMORY] == 0
    assert every[Place.STORAGE] % every[Place.PEER] == 0
    series = sorted({round(1.2**at) for at in range(50)})
    grid = (
        {Place.MEMORY: often, Place.PEER: often * k, Place.STORAGE: often * k * j}
        for often, k, j in itertools.product(series, series, series)
        if often * k * j <= 7200
    )
    assert _waste(every, cost, rate) <= 1.02 * min(_waste(one, cost, rate) for one in grid)
    pins: Any = {**none, Place.PEER: 60}
    pinned: Any = decide(cost, rate, none, fixed=pins).every
    assert pinned[Place.PEER] == 60
    assert 1 <= pinned[Place.MEMORY] <= 60
    assert pinned[Place.STORAGE] % 60 == 0


def test_what_is_assumed_before_anything_failed() -> None:
    """Half a day at the most, less with many nodes; more once that long has gone well."""
    small = learn(Observed(), nodes=1)
    assert whole(small) == pytest.approx(LONGEST_ASSUMED)
    large = learn(Observed(), nodes=10_000)
    assert whole(large) == pytest.approx(NODE_SECONDS / 10_000)
    later = learn(Observed(seconds=3 * DAY), nodes=1)
    assert whole(later) == pytest.approx(LONGEST_ASSUMED + 3 * DAY)
    assert "assumed" in later.reason


def test_failures_are_learned_by_what_they_go_back_to() -> None:
    """Five failures outweigh the assumption; the part that takes nodes is learned with them."""
    seen = learn(observed(4, 1, 3000.0), nodes=2)
    assert whole(seen) == pytest.approx(600.0, rel=0.3)
    assert seen.by_tier[Tier.STORAGE] / seen.by_tier[Tier.MEMORY] == pytest.approx(2 / 5)
    told = learn(observed(4, 1, 3000.0), nodes=2, given=DAY)
    assert whole(told) == pytest.approx(DAY)


def test_what_counts_as_a_failure() -> None:
    """A process leaves its node's memory, an agent or a node takes it along; wishes are neither."""
    assert counts("WorkerRaised") is Tier.MEMORY
    assert counts("WorkerCrashed") is Tier.MEMORY
    assert counts("AgentSilent") is Tier.STORAGE
    assert counts("Preempted") is Tier.STORAGE
    assert counts("Rescaled") is None
    assert counts("anything else") is None
