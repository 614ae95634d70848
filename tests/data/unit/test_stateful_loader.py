"""torchdata's StatefulDataLoader, the real one, in the place of torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from holdfast.data.batches import Batches
from holdfast.data.quota import QuotaSampler
from holdfast.data.sample_map import SampleMap
from holdfast.local_sgd.sync.group import Group

pytestmark = [
    pytest.mark.train,  # its workers import torch
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 calls it
]


class Halved:
    """Two replicas at first, of which the second is lost in step 3."""

    def __init__(self) -> None:
        """Begin with two."""
        self.micro_batches, self.own, self.steps, self.replica = 4, Group.of_one(), 0, 0

    @property
    def replicas(self) -> tuple[int, ...]:
        """Return the numbers."""
        return (0, 1) if self.steps < 3 else (0,)

    def dealt(self) -> Iterator[int]:
        """Yield this replica's micro-batches of a step."""
        yield from range(0, 4, len(self.replicas))
        self.steps += 1


@pytest.mark.parametrize("workers", [0, 2])
def test_replicas_read_through_it(workers: int) -> None:
    """What it has read ahead for two replicas serves the one that is left."""
    replicated: Any = Halved()
    batches = Batches(
        range(4 * 2 * 6), replicated, micro_batch=2, loader=StatefulDataLoader, num_workers=workers
    )
    found = [[batch.tolist() for batch in step] for step in batches.steps()]
    assert found == [
        [batches.map.ids(step, number) for number in range(0, 4, 2 if step < 3 else 1)]
        for step in range(6)
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_rank_goes_on_from_its_saved_state(workers: int) -> None:
    """Saved within a step; in another world the step says all, and no state is loaded."""
    samples = SampleMap(samples=96, micro_batch=2, micro_batches=4, seed=3)

    def loader(rank: int, world: int, start: int = 0) -> Any:
        sampler = QuotaSampler(samples, rank, world, start=start)
        return StatefulDataLoader(range(96), batch_sampler=sampler, num_workers=workers)

    whole = [batch.tolist() for batch in loader(0, 2)]
    first = loader(0, 2)
    reading = iter(first)
    read = [next(reading).tolist() for _ in range(7)]  # three steps of two, and a half
    second = loader(0, 2)
    second.load_state_dict(first.state_dict())
    assert [*read, *(batch.tolist() for batch in second)] == whole
    other = [batch.tolist() for rank in range(4) for batch in loader(rank, 4, start=3)]
    assert sorted(one for batch in [*whole[:6], *other] for one in batch) == sorted(
        {*range(96)} - {one for step in range(3) for at in (1, 3) for one in samples.ids(step, at)}
    )
