"""Quotas of plain worlds: a resize changes who has a sample, and not in which step it is."""

from __future__ import annotations

import random

import pytest

from holdfast.data.quota import QuotaSampler
from holdfast.data.sample_map import Last, SampleMap


def test_a_step_has_the_same_samples_in_each_world() -> None:
    """4, 3, 5, 2 and 6 ranks, one after the other: each sample once in the epoch."""
    samples = SampleMap(samples=1008, micro_batch=3, micro_batches=7, seed=5)
    rng = random.Random(seed := random.randrange(2**32))
    step, seen = 0, list[int]()
    for world in (4, 3, 5, 2, 6):
        until = samples.steps_of_epoch if world == 6 else step + rng.randrange(1, 8)
        for rank in range(world):
            sampler = QuotaSampler(samples, rank, world, start=step)
            lists = list(sampler)
            assert len(lists) == len(sampler)
            seen += [one for some in lists[: (until - step) * sampler.quota] for one in some]
        step = until
    assert sorted(seen) == list(range(1008)), f"seed {seed}"


def test_quotas_differ_by_one_at_most_and_make_a_mean() -> None:
    """Seven micro-batches on three ranks: 3, 2 and 2; DDP's mean over ranks times 3/7."""
    samples = SampleMap(samples=100, micro_batch=1, micro_batches=7)
    made = [QuotaSampler(samples, rank, 3) for rank in range(3)]
    assert [one.quota for one in made] == [3, 2, 2]
    assert sum(one.quota * one.ddp_factor for one in made) / 3 == pytest.approx(1)


def test_a_world_with_idle_ranks_is_refused_with_the_remedy() -> None:
    """So is a rank that is not in it."""
    samples = SampleMap(samples=100, micro_batch=1, micro_batches=2)
    with pytest.raises(ValueError, match="world_size=3: a step has 2 micro-batches"):
        QuotaSampler(samples, 0, 3)
    with pytest.raises(ValueError, match="rank=2: expected 0 to 1"):
        QuotaSampler(samples, 2, 2)


def test_an_epoch_that_ends_short_is_refused() -> None:
    """Some rank would be left without a batch in the last step."""
    samples = SampleMap(samples=10, micro_batch=3, micro_batches=2, last=Last.SHORT)
    with pytest.raises(ValueError, match=r"last='short'.*pass 'drop' or 'pad'"):
        QuotaSampler(samples, 0, 2)
