"""The map from steps to samples: each sample once in an epoch, whoever asks."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from holdfast.data.sample_map import EpochStep, Last, SampleMap


def epoch_of(made: SampleMap, epoch: int) -> Counter[int]:
    """Return how often each sample is in an epoch."""
    begin = epoch * made.steps_of_epoch
    return Counter(
        one
        for step in range(begin, begin + made.steps_of_epoch)
        for number in range(made.micro_batches)
        for one in made.ids(step, number)
    )


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_sample_is_once_in_each_epoch(*, shuffle: bool) -> None:
    """A short last step has what is left over."""
    rng = random.Random(seed := random.randrange(2**32))
    for _ in range(30):
        samples, size = rng.randrange(1, 200), rng.randrange(1, 9)
        made = SampleMap(
            samples=samples, micro_batch=size, micro_batches=rng.randrange(1, 9),
            seed=seed, shuffle=shuffle, last=Last.SHORT,
        )  # fmt: skip
        for epoch in (0, 1, 5):
            assert epoch_of(made, epoch) == Counter(range(samples)), f"seed {seed}: {made}"


def test_a_last_step_that_is_not_whole_is_dropped_or_filled_up() -> None:
    """Ten samples in steps of four: two are left out, or two are used twice."""
    given: dict[str, Any] = {"samples": 10, "micro_batch": 2, "micro_batches": 2}
    dropped, padded = (epoch_of(SampleMap(**given, last=last), 0) for last in (Last.DROP, Last.PAD))
    assert (len(dropped), dropped.total()) == (8, 8)
    assert (len(padded), padded.total()) == (10, 12)
    assert SampleMap(**given, last=Last.PAD).place(7) == EpochStep(2, 1)


def test_a_split_in_more_micro_batches_has_the_same_samples_in_each_step() -> None:
    """A step of 12 samples is one of 3 times 4 and of 6 times 2."""
    one = SampleMap(samples=100, micro_batch=4, micro_batches=3, seed=5)
    other = SampleMap(samples=100, micro_batch=2, micro_batches=6, seed=5)
    for step in range(20):
        a = [sample for number in range(3) for sample in one.ids(step, number)]
        assert a == [sample for number in range(6) for sample in other.ids(step, number)]


def test_settings_that_give_no_step_are_refused_with_the_remedy() -> None:
    """Sizes under 1, and a step that is larger than the data."""
    with pytest.raises(ValueError, match="micro_batch=0: expected 1 or more"):
        SampleMap(samples=10, micro_batch=0, micro_batches=1)
    with pytest.raises(ValueError, match="pass 'pad' or 'short'"):
        SampleMap(samples=10, micro_batch=4, micro_batches=3)
    with pytest.raises(IndexError, match="each has 2"):
        SampleMap(samples=10, micro_batch=1, micro_batches=2).ids(0, 2)
