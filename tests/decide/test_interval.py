"""The interval of Young and Daly for two tiers: figures, bounds, and what it says of itself."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.decide.failure_rate import (
    LONGEST_ASSUMED,
    NODE_SECONDS,
    Observed,
    Rates,
    counts,
    learn,
)
from holdfast_master.decide.interval import Costs, Every, Verdict, daly, decide

AUTO = Every(memory=0, storage=0)
OLD = Every(memory=1, storage=100)
DAY = 86_400.0


def costs(
    memory: float = 0.1, storage: float | None = 2.0, durable: float = 5.0, step: float = 1.0
) -> Costs:
    """What was measured."""
    return Costs(step=step, memory=memory, storage=storage, durable=durable)


def rates(memory: float = DAY, storage: float = DAY) -> Rates:
    """Means between failures, s."""
    return Rates(memory=1 / memory, storage=1 / storage, reason="(known)")


def choose(cost: Costs, rate: Rates, now: Every = OLD, fixed: Every = AUTO) -> Verdict:
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
    """What each tier costs against the failures that it serves, within its bounds."""
    assert choose(cost, rate).every == Every(memory=memory, storage=storage)


def test_numbers_in_the_spec_hold_and_the_other_tier_is_fitted_to_them() -> None:
    """Somebody's number is never changed; two of them leave nothing to compute."""
    both = Every(memory=7, storage=30)
    verdict = choose(costs(), rates(), fixed=both)
    assert verdict.every == both
    assert verdict.changed
    assert verdict.memory_reason == "the job's spec says so"
    assert choose(costs(), rates(), fixed=Every(memory=50, storage=0)).every == Every(
        memory=50, storage=550
    )
    assert choose(costs(), rates(), fixed=Every(memory=0, storage=40)).every == Every(
        memory=40, storage=40
    )


def test_small_differences_change_nothing() -> None:
    """A quarter more or less is not worth it; a number in the spec always is."""
    best = choose(costs(), rates()).every
    near = Every(memory=round(best.memory * 1.2), storage=round(best.storage / 1.2))
    verdict = choose(costs(), rates(), now=near)
    assert (verdict.every, verdict.changed) == (near, False)
    assert f"{best.memory} and {best.storage} would hardly be better" in verdict.memory_reason
    far = Every(memory=best.memory, storage=round(best.storage * 1.4))
    assert choose(costs(), rates(), now=far).every == best
    wished = Every(memory=near.memory + 1, storage=0)
    assert choose(costs(), rates(), now=near, fixed=wished).every.memory == near.memory + 1


def test_it_says_what_it_was_made_from() -> None:
    """For people: costs, step time, failures and how those are known."""
    verdict = choose(costs(), learn(Observed(memory=1, storage=1, seconds=7200), nodes=4))
    for text in (verdict.memory_reason, verdict.storage_reason):
        assert text.startswith("sqrt(2 × cost × time between failures), as by Young and Daly: ")
    assert "stops training for 100 ms" in verdict.memory_reason
    assert "a step takes 1 s" in verdict.memory_reason
    assert "learned from 2 failures in 2 h of training" in verdict.memory_reason
    assert "a save costs 2 s of training" in verdict.storage_reason
    assert "a node is lost every" in verdict.storage_reason
    unmeasured = choose(costs(storage=None), rates()).storage_reason
    assert unmeasured == "as before: no save to storage has been measured yet"


SECONDS = st.floats(1e-7, 1e5)


@given(
    st.builds(Costs, step=SECONDS, memory=SECONDS, storage=st.none() | SECONDS, durable=SECONDS),
    st.builds(
        Rates, memory=st.floats(1e-12, 1.0), storage=st.floats(1e-12, 1.0), reason=st.just("")
    ),
    st.builds(Every, memory=st.integers(0, 10**6), storage=st.integers(1, 10**6)),
    st.builds(Every, memory=st.integers(0, 10**6), storage=st.integers(0, 10**6)),
)
def test_any_input_leads_to_a_schedule(cost: Costs, rate: Rates, now: Every, fixed: Every) -> None:
    """New intervals are at least 1, and deciding again changes nothing."""
    verdict = choose(cost, rate, now=now, fixed=fixed)
    assert verdict.changed == (verdict.every != now)
    if verdict.changed:
        assert verdict.every.memory >= 1
        assert verdict.every.storage >= 1
    again = choose(cost, rate, now=verdict.every, fixed=fixed)
    assert not again.changed or cost.storage is None


def test_what_is_assumed_before_anything_failed() -> None:
    """Half a day at the most, less with many nodes; more once that long has gone well."""
    small = learn(Observed(), nodes=1)
    assert 1 / (small.memory + small.storage) == pytest.approx(LONGEST_ASSUMED)
    large = learn(Observed(), nodes=10_000)
    assert 1 / (large.memory + large.storage) == pytest.approx(NODE_SECONDS / 10_000)
    later = learn(Observed(seconds=3 * DAY), nodes=1)
    assert 1 / (later.memory + later.storage) == pytest.approx(LONGEST_ASSUMED + 3 * DAY)
    assert "assumed" in later.reason


def test_failures_are_learned_by_what_they_go_back_to() -> None:
    """Five failures outweigh the assumption; the part that takes nodes is learned with them."""
    seen = learn(Observed(memory=4, storage=1, seconds=3000.0), nodes=2)
    assert 1 / (seen.memory + seen.storage) == pytest.approx(600.0, rel=0.3)
    assert seen.storage / seen.memory == pytest.approx(2 / 5)
    told = learn(Observed(memory=4, storage=1, seconds=3000.0), nodes=2, given=DAY)
    assert 1 / (told.memory + told.storage) == pytest.approx(DAY)


def test_what_counts_as_a_failure() -> None:
    """A process leaves its node's memory, an agent or a node takes it along; wishes are neither."""
    assert counts("WorkerRaised") == "memory"
    assert counts("WorkerCrashed") == "memory"
    assert counts("AgentSilent") == "storage"
    assert counts("Preempted") == "storage"
    assert counts("Rescaled") == ""
    assert counts("anything else") == ""
