"""Batches by step and micro-batch: read ahead, and read anew where members change."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from holdfast.data.batches import Batches, BatchOptions
from holdfast.data.sample_map import Last
from holdfast.local_sgd.sync.group import Group


class Dealt:
    """What batches ask of replicas: this is the first of some, whose number changes."""

    def __init__(self, micro_batches: int, changes: dict[int, int] | None = None) -> None:
        """Take the number of replicas from some steps on."""
        self.micro_batches, self.own, self.steps = micro_batches, Group.of_one(), 0
        self._changes = changes or {0: 1}
        self.weights: list[float] = []
        self.replica = 0

    @property
    def replicas(self) -> tuple[int, ...]:
        """Return the numbers."""
        newest = max(step for step in self._changes if step <= self.steps)
        return tuple(range(self._changes[newest]))

    def dealt(self) -> Iterator[int]:
        """Yield this replica's micro-batches of a step."""
        yield from range(0, self.micro_batches, len(self.replicas))
        self.steps += 1

    def weigh(self, weight: float) -> None:
        """Remember it."""
        self.weights.append(weight)


def taken(batches: Batches) -> list[list[list[int]]]:
    """Return the samples of each micro-batch of each step."""
    return [[batch.tolist() for batch in step] for step in batches.steps()]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.train)])
def test_what_is_read_follows_the_members(workers: int) -> None:
    """3, then 2, then 4 replicas: each micro-batch has its own samples, and others are dropped."""
    dealt = Dealt(12, {0: 3, 4: 2, 7: 4})
    batches = Batches(range(12 * 2 * 10), dealt, micro_batch=2, seed=3, num_workers=workers)  # type: ignore[arg-type]
    found = taken(batches)
    assert [len(step) for step in found] == [4] * 4 + [6] * 3 + [3] * 3
    for step, some in enumerate(found):
        share = 12 // len(some)
        assert some == [batches.map.ids(step, number) for number in range(0, 12, share)]
    assert (batches.dropped > 0) == (workers > 0)


def test_an_epoch_has_each_sample_once_and_the_next_another_order() -> None:
    """Also the samples of a last step that is not whole."""
    options = BatchOptions(last=Last.SHORT)
    dealt = Dealt(3)
    batches = Batches(range(20), dealt, micro_batch=3, epochs=2, options=options)  # type: ignore[arg-type]
    steps = [[one for batch in step for one in batch] for step in taken(batches)]
    for epoch in (steps[:3], steps[3:]):
        assert sorted(one for step in epoch for one in step) == list(range(20))
    assert steps[:3] != steps[3:]
    assert dealt.weights == [0, 0, 0, 0], "empty micro-batches weigh nothing"


class Noisy:
    """A sample is a random number, drawn as it is read."""

    def __len__(self) -> int:
        """Return the count."""
        return 24

    def __getitem__(self, number: int) -> float:
        """Return a number of Python's generator."""
        return number + random.random()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.train)])
def test_random_numbers_hang_on_the_micro_batch_alone(workers: int) -> None:
    """Read by a worker or at once, by whichever replica; dropout draws alike too."""

    def run(changes: dict[int, int]) -> dict[tuple[int, int], tuple[list[float], float]]:
        dealt = Dealt(6, changes)
        batches = Batches(Noisy(), dealt, micro_batch=2, num_workers=workers)  # type: ignore[arg-type]
        return {
            (step.number, at * len(dealt.replicas)): (batch.tolist(), float(torch.rand(1)))
            for step in batches.steps()
            for at, batch in enumerate(step)
        }

    alone, three = run({0: 1}), run({0: 3})
    assert len(three) == 4
    assert {key: alone[key] for key in three} == three
    assert len({tuple(samples) for samples, _ in alone.values()}) == len(alone)


def test_a_training_goes_on_from_a_step() -> None:
    """Nothing but the step is needed."""
    whole = taken(Batches(range(60), Dealt(4), micro_batch=3, epochs=2))  # type: ignore[arg-type]
    rest = Batches(range(60), Dealt(4), micro_batch=3, epochs=2)  # type: ignore[arg-type]
    assert [[batch.tolist() for batch in step] for step in rest.steps(7)] == whole[7:]


def test_a_loader_may_give_micro_batches_in_another_order() -> None:
    """As one does whose workers are not waited for in turn: each keeps its own samples."""

    class Swapping:
        def __init__(self, dataset: Any, *, batch_sampler: Any, collate_fn: Any) -> None:
            self.dataset, self.asks, self.made = dataset, batch_sampler, collate_fn

        def __iter__(self) -> Iterator[Any]:
            asked = iter(self.asks)
            for [first] in asked:
                for one in (*next(asked, ()), first):
                    yield self.made([self.dataset[one]])

    batches = Batches(range(48), Dealt(4), micro_batch=3, loader=Swapping)  # type: ignore[arg-type]
    found = taken(batches)
    assert found == [[batches.map.ids(step, one) for one in range(4)] for step in range(4)]


def test_a_short_end_is_refused_where_ranks_share_a_micro_batch() -> None:
    """One would make no forward pass, and the others would wait for its shards."""
    dealt = Dealt(4)
    options = BatchOptions(last=Last.SHORT, data_rank=(0, 2))
    with pytest.raises(ValueError, match=r"last='short'.*2 ranks of a replica"):
        Batches(range(61), dealt, micro_batch=2, options=options)  # type: ignore[arg-type]


def test_a_micro_batch_that_ranks_cannot_share_is_refused() -> None:
    """Each rank of a replica has an equal part."""
    given: Any = {"micro_batch": 3, "options": BatchOptions(data_rank=(0, 2))}
    with pytest.raises(ValueError, match="micro_batch=3: it is cut into equal parts for the 2"):
        Batches(range(60), Dealt(4), **given)  # type: ignore[arg-type]
