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

    name = "data"

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


def summed(each: dict[int, ReaderPlaces], step: int, dtype: torch.dtype) -> list[float]:
    """Return the sum of what replicas give, by number; each has one micro-batch, of eight."""
    total = torch.zeros(next(iter(each.values())).size(8), dtype=dtype)
    for at, (number, one) in enumerate(each.items()):
        own = torch.zeros_like(total)
        one.fill(own, at, number, step)
        total += own
    return [float(one) for one in total]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("place", [None, *map(ReaderPlace, (0, 0, 7), (-1, 1, 300)), FAR])
def test_a_place_comes_through_a_sum_as_it_was(
    place: ReaderPlace | None, dtype: torch.dtype
) -> None:
    """Also one that a float32 has no number for."""
    (mine, [reader, _]), (others, _) = places(ReaderPlace(3, 4), None), places(place, FAR)
    numbers = summed({5: mine, 9: others}, 12, dtype)
    assert reader.step == 12
    mine.note(numbers, 12)
    mine.meet(5, [5], [], step=13, epoch=7)
    assert reader.told == [([LostPlace(9, 12, place, 7)], 14)]


def test_each_reader_tells_of_those_of_its_own_data() -> None:
    """A script may have several; what is told once is not told again."""
    mine, readers = places(None, None)
    others, _ = places(ReaderPlace(1, 10), ReaderPlace(2, 20))
    mine.note(summed({0: mine, 1: others}, 3, torch.float32), 3)
    mine.meet(0, [0, 1], [], step=3, epoch=7)
    assert [one.told for one in readers] == [[], []], "nobody is lost"
    mine.meet(0, [0], [], step=3, epoch=7)
    mine.meet(0, [0], [], step=3, epoch=7)
    assert [one.told for one in readers] == [
        [([LostPlace(1, 3, ReaderPlace(1, 10), 7)], 4)],
        [([LostPlace(1, 3, ReaderPlace(2, 20), 7)], 4)],
    ]


def test_the_newest_sum_that_has_a_replica_counts() -> None:
    """It had nothing to compute in the step after that."""
    (mine, [reader]), (others, _) = places(None), places(ReaderPlace(1, 10))
    mine.note(summed({0: mine, 1: others}, 3, torch.float32), 3)
    mine.note(summed({0: mine}, 4, torch.float32), 4)
    mine.meet(0, [0], [], step=4, epoch=7)
    assert reader.told == [([LostPlace(1, 3, ReaderPlace(1, 10), 7)], 5)]


def test_a_replica_that_joins_knows_nothing_of_before() -> None:
    """What it knew is older than what the others have, who would have it undone."""
    (mine, [reader]), (others, _) = places(None), places(ReaderPlace(1, 10))
    mine.note(summed({0: mine, 1: others}, 3, torch.float32), 3)
    mine.meet(0, [0, 1, 2], [0], step=4, epoch=7)
    mine.meet(0, [0, 2], [], step=5, epoch=7)
    assert reader.told == []


def test_one_that_is_lost_before_its_first_sum_has_read_nothing_that_counts() -> None:
    """Those that saw it come know that."""
    mine, [reader] = places(None)
    mine.meet(0, [0, 1], [1], step=6, epoch=7)
    mine.meet(0, [0], [], step=6, epoch=7)
    assert reader.told == [([LostPlace(1, 6, None, 7)], 7)]


def test_one_that_comes_back_and_is_lost_before_its_next_sum_is_where_it_was() -> None:
    """Given the state or not: the word of before is void, and those that are left say it again."""
    for fresh in ([], [1]):
        (mine, [reader]), (others, _) = places(None), places(ReaderPlace(1, 10))
        mine.note(summed({0: mine, 1: others}, 3, torch.float32), 3)
        mine.meet(0, [0], [], step=3, epoch=4)
        mine.meet(0, [0, 1], fresh, step=5, epoch=5)
        mine.meet(0, [0], [], step=5, epoch=6)
        place = ReaderPlace(1, 10)
        assert reader.told == [([LostPlace(1, 3, place, 4)], 4), ([LostPlace(1, 3, place, 6)], 6)]


def test_a_few_tell_of_all() -> None:
    """The first of those that have all sums."""
    telling = []
    for me in range(1, 8):
        (mine, [reader]), (others, _) = places(None), places(ReaderPlace(1, 10))
        mine.note(summed({me: mine, 9: others}, 3, torch.float32), 3)
        mine.meet(me, range(1, 8), [2], step=3, epoch=7)
        telling += [me] if reader.told else []
    assert telling == [1, 3, 4]
    assert len(telling) == TELLERS
