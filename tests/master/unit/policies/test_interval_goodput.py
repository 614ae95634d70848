"""The automatic interval against every fixed one, on a job on paper: `bench.interval`."""

from __future__ import annotations

import pytest

from bench.interval import (
    BEFORE,
    JOBS,
    LEARNING,
    MEANS,
    Job,
    automatic,
    best_fixed,
    failures,
    goodput,
    learning,
    measure,
    pair,
    rates_of,
)
from holdfast_master.policies.failure_rate import Rates
from holdfast_master.policies.interval import Every
from holdfast_wire.messages import Tier

# Thousands of the same few lines, which tests/master/unit/policies/test_interval.py covers in
# seconds.
pytestmark = [pytest.mark.slow, pytest.mark.no_cover]
NUMBER, SEEDS = 200, 20


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_it_is_as_good_as_the_best_fixed_interval(job: Job) -> None:
    """Within 1 % where the failure rate is known; learned from five failures, nearly always 3 %."""
    for mean in MEANS:
        row = measure(job, mean, number=NUMBER, seeds=SEEDS)
        assert row.known_goodput >= 0.99 * row.best_goodput, row
        good = [value for value in row.learned_goodput if value >= 0.97 * row.best_goodput]
        assert len(good) >= 0.9 * SEEDS, row
        assert sum(row.learned_goodput) / SEEDS >= 0.98 * row.best_goodput, row


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_that_learns_is_within_3_percent_from_its_fifth_failure_on(job: Job) -> None:
    """Each seed, where failures are most frequent and so cost most: the master looks after each."""
    for seed in range(6):
        value, best = learning(job, MEANS[0], seed, LEARNING)
        assert value >= 0.97 * best, (seed, value, best)


def test_a_job_that_never_learns_is_not() -> None:
    """The comparison above can fail: the schedule from before anything was measured is worse."""
    story = failures(5, LEARNING, JOBS[2].losses)
    kept = goodput(JOBS[2], BEFORE, MEANS[0], story)
    assert kept < 0.97 * best_fixed(JOBS[2], MEANS[0], story)[1]


def _times(factor: float) -> object:
    def choose(job: Job, rates: Rates) -> Every:
        every = automatic(job, rates)
        memory = max(1, round(every[Tier.MEMORY] * factor))
        k = every[Tier.STORAGE] // every[Tier.MEMORY]
        return pair(memory, memory * k)

    return choose


def _swapped(job: Job, rates: Rates) -> Every:
    """Each tier is weighed against the other's failures."""
    memory, storage = (rates.by_tier[tier] for tier in (Tier.MEMORY, Tier.STORAGE))
    return automatic(job, rates_of(storage / 20, memory * 20))


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(_times(4), id="seldom"),
        pytest.param(_times(0.25), id="often"),
        pytest.param(lambda *_: pair(1, 100), id="never-changed"),
        pytest.param(_swapped, id="tiers-mixed-up"),
    ],
)
def test_a_wrong_formula_is_found(planted: object) -> None:
    """With each of these the comparison above fails: it can."""
    rows = (
        measure(job, mean, number=NUMBER, seeds=0, choose=planted)  # type: ignore[arg-type]
        for job in JOBS
        for mean in MEANS[:2]
    )
    assert any(row.known_goodput < 0.99 * row.best_goodput for row in rows)
