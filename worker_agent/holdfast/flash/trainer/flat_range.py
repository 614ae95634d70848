"""The boxes of a flat range: optimizers that cut flat buffers own ranges of tensors, not rows.

Belongs here: the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from holdfast.flash.memory.shard_table import Box


def boxes_of_range(shape: Sequence[int], begin: int, end: int) -> Iterator[Box]:
    """Yield (offsets, sizes) of the boxes of a tensor's elements `begin` to `end`, counted flat.

    Their elements, one box after another and each in row-major order, are the range: so each box is
    a contiguous part of it. Of N dimensions there are at most 2N - 1 boxes, and none of an empty
    range. Raises ValueError if the range is not in the tensor.
    """
    if not 0 <= begin <= end <= prod(shape):
        raise ValueError(
            f"elements {begin} to {end} of a tensor of shape {tuple(shape)}: expected a range in "
            f"its {prod(shape)} elements"
        )
    yield from _boxes(tuple(shape), begin, end)


def _boxes(shape: tuple[int, ...], begin: int, end: int) -> Iterator[Box]:
    if begin == end:
        return
    if not shape:
        yield (), ()
        return
    inner = shape[1:]
    size = prod(inner)
    first, last = -(-begin // size), end // size  # whole rows
    if first > last:
        yield from _in_row(inner, last, begin - last * size, end - last * size)
        return
    if begin < first * size:
        yield from _in_row(inner, first - 1, begin - (first - 1) * size, size)
    if first < last:
        zeros = (0,) * len(inner)
        yield (first, *zeros), (last - first, *inner)
    yield from _in_row(inner, last, 0, end - last * size)


def _in_row(inner: tuple[int, ...], row: int, begin: int, end: int) -> Iterator[Box]:
    for offsets, sizes in _boxes(inner, begin, end):
        yield (row, *offsets), (1, *sizes)
