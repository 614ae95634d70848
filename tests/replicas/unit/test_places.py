"""Places of readers of shards, on their way with a sum and in the word about a lost replica."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from holdfast.replicas.places import TELLERS, ReaderPlaces
from holdfast.replicas.reader_place import LostPlace, ReaderPlace

FAR = ReaderPlace((1 << 40) + 12_345, (1 << 43) + 678)


class Reader:
    """A reader that is at a place, and remembers what it is to tell."""

    def __init__(self, place: ReaderPlace | None) -> None:
        self.place, self.step = place, 0
        self.told: list[tuple[Sequence[LostPlace], int]] = []

    def reducing(self, step: int) -> ReaderPlace | None:
        """Return the place."""
        self.step = step
        return self.place

    def tell_lost(self, lost: Sequence[LostPlace], torn: int) -> None:
        """Remember."""
        self.told.append((lost, torn))


def places(*at: ReaderPlace | None) -> tuple[ReaderPlaces, list[Reader]]:
    """Return the places of one replica with a reader at each of these."""
    made, readers = ReaderPlaces(), [Reader(one) for one in at]
    for one in readers:
        made.add(one)
    return made, readers


def summed(each: Sequence[ReaderPlaces], step: int, dtype: torch.dtype) -> list[float]:
    """Return the sum of what all give; each has the micro-batch of its rank, of eight."""
    total = torch.zeros(each[0].size(8), dtype=dtype)
    for rank, one in enumerate(each):
        own = torch.zeros_like(total)
        one.fill(own, rank, rank, step)
        total += own
    return [float(one) for one in total]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "place", [None, ReaderPlace(0, -1), ReaderPlace(0, 1), ReaderPlace(7, 300), FAR]
)
def test_a_place_comes_through_a_sum_as_it_was(
    place: ReaderPlace | None, dtype: torch.dtype
) -> None:
    """Also one that a float32 has no number for."""
    (mine, [reader, _]), (others, _) = places(ReaderPlace(3, 4), None), places(place, FAR)
    numbers = summed([mine, others], 12, dtype)
    assert reader.step == 12
    mine.note(numbers, 12, [5, 9])
    mine.meet(5, [5], [], torn=14)
    assert reader.told == [([LostPlace(9, 12, place)], 14)]


def test_each_reader_tells_of_those_of_its_own_data() -> None:
    """A script may have several; what is told once is not told again."""
    mine, readers = places(None, None)
    others, _ = places(ReaderPlace(1, 10), ReaderPlace(2, 20))
    mine.note(summed([mine, others], 3, torch.float32), 3, [0, 1])
    mine.meet(0, [0, 1], [], torn=4)
    assert [one.told for one in readers] == [[], []], "nobody is lost"
    mine.meet(0, [0], [], torn=4)
    mine.meet(0, [0], [], torn=4)
    assert [one.told for one in readers] == [
        [([LostPlace(1, 3, ReaderPlace(1, 10))], 4)],
        [([LostPlace(1, 3, ReaderPlace(2, 20))], 4)],
    ]


def test_the_newest_sum_that_has_a_replica_counts() -> None:
    """It had nothing to compute in the step after that."""
    (mine, [reader]), (others, _) = places(None), places(ReaderPlace(1, 10))
    mine.note(summed([mine, others], 3, torch.float32), 3, [0, 1])
    mine.note(summed([mine], 4, torch.float32), 4, [0, 1])
    mine.meet(0, [0], [], torn=5)
    assert reader.told == [([LostPlace(1, 3, ReaderPlace(1, 10))], 5)]


def test_a_replica_that_lacks_a_sum_tells_nothing_of_before() -> None:
    """What it knows is older than what the others have, who would have it undone."""
    (mine, [reader]), (others, _) = places(None), places(ReaderPlace(1, 10))
    mine.note(summed([mine, others], 3, torch.float32), 3, [0, 1])
    mine.meet(0, [0, 1, 2], [0], torn=4)
    mine.meet(0, [0, 2], [], torn=5)
    assert reader.told == []


def test_a_few_tell_of_all() -> None:
    """The first of those that have all sums."""
    telling = []
    for me in range(1, 8):
        (mine, [reader]), (others, _) = places(None), places(ReaderPlace(1, 10))
        mine.note(summed([mine, others], 3, torch.float32), 3, [me, 9])
        mine.meet(me, range(1, 8), [2], torn=4)
        telling += [me] if reader.told else []
    assert telling == [1, 3, 4]
    assert len(telling) == TELLERS
