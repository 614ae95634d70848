"""Permutations by key: each number once, in an order that seed and epoch choose."""

from __future__ import annotations

import itertools
import random

import pytest

from holdfast.data.permutation import Permutation


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 15, 16, 17, 1000, 4097])
def test_each_number_comes_once(size: int) -> None:
    """Sizes at and beside powers of two and four."""
    seed = random.randrange(2**40)
    found = [Permutation(size, seed, 3)[place] for place in range(size)]
    assert sorted(found) == list(range(size)), f"seed {seed}"


def test_a_place_of_a_thousand_million_takes_no_list() -> None:
    """Numbers far apart come from places that are neighbours."""
    order = Permutation(10**9, 7, 0)
    found = [order[place] for place in range(1000)]
    assert len(set(found)) == 1000
    assert max(found) - min(found) > 9 * 10**8
    assert all(0 <= one < 10**9 for one in found)


def test_seed_and_epoch_choose_the_order() -> None:
    """The same pair gives the same order, and each other pair another one."""
    orders = [
        [Permutation(50, seed, epoch)[place] for place in range(50)]
        for seed, epoch in [(1, 0), (1, 1), (2, 0), (2**70, 0)]
    ]
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] == [Permutation(50, 1, 0)[place] for place in range(50)]


def test_pairs_of_neighbours_are_as_far_apart_as_by_a_drawn_shuffle() -> None:
    """The mean distance of two that come one after the other is a third of the size."""
    order = Permutation(3000, 11, 2)
    found = [order[place] for place in range(3000)]
    distance = sum(abs(a - b) for a, b in itertools.pairwise(found)) / 2999
    assert 950 < distance < 1050


def test_a_place_outside_is_refused() -> None:
    """Negative places too: they would be counted from the end elsewhere."""
    for place in (-1, 4):
        with pytest.raises(IndexError, match="there are 4"):
            Permutation(4, 0, 0)[place]
    with pytest.raises(ValueError, match="size=0"):
        Permutation(0, 0, 0)
