"""A flat range of a tensor as boxes: they are exactly its elements, in its order, and few."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.flash.trainer.flat_range import boxes_of_range


@st.composite
def ranges(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    """Draw a shape of up to five dimensions, also without elements, and a range of it."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=5)))
    begin = draw(st.integers(0, prod(shape)))
    return shape, begin, draw(st.integers(begin, prod(shape)))


def elements(shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> list[int]:
    """Return the flat numbers of a box's elements, in row-major order."""
    found = []
    for index in product(*(range(at, at + size) for at, size in zip(offsets, sizes, strict=True))):
        number = 0
        for at, size in zip(index, shape, strict=True):
            assert at < size
            number = number * size + at
        found.append(number)
    return found


@given(ranges())
def test_boxes_tile_exactly_the_range_in_row_major_order(
    given_range: tuple[tuple[int, ...], int, int],
) -> None:
    """The boxes' elements, one box after another, are the range's, and at most 2N - 1 boxes."""
    shape, begin, end = given_range
    boxes = list(boxes_of_range(shape, begin, end))
    found = [number for offsets, sizes in boxes for number in elements(shape, offsets, sizes)]
    assert found == list(range(begin, end))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)
    assert all(0 not in sizes for _, sizes in boxes)


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (3, 2), (0, 7)])
def test_a_range_outside_the_tensor_is_refused_with_its_size(begin: int, end: int) -> None:
    """The error names range, shape, and the number of elements."""
    with pytest.raises(ValueError, match=rf"elements {begin} to {end} .*\(2, 3\).* 6 elements"):
        list(boxes_of_range((2, 3), begin, end))
