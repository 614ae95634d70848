"""Ranges of a flattened tensor as boxes of the tensor.

Optimizers that cut a flat buffer into equal ranges own such a range of each parameter. Does not
belong here: the buffers of any framework.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod


def boxes_of_range(
    shape: Sequence[int], begin: int, end: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the boxes that are the elements [begin, end) of a tensor in row-major order.

    Args:
        shape: Shape of the tensor.
        begin: First element of the range.
        end: The element after the last one.

    Yields:
        (offsets, sizes) in the order of the elements; at most 2 * dimensions - 1 boxes.
    """
    if begin >= end:
        return
    if len(shape) < 2:
        yield ((begin,), (end - begin,)) if shape else ((), ())
        return
    rest, row = tuple(shape[1:]), prod(shape[1:])
    first, last = begin // row, (end - 1) // row
    if first == last and end - begin < row:
        yield from _in_row(first, rest, begin - first * row, end - first * row)
        return
    whole, tail = -(-begin // row), end // row
    if begin % row:
        yield from _in_row(first, rest, begin - first * row, row)
    if tail > whole:
        yield (whole, *(0,) * len(rest)), (tail - whole, *rest)
    if end % row:
        yield from _in_row(tail, rest, 0, end - tail * row)


def _in_row(
    number: int, rest: tuple[int, ...], begin: int, end: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for offsets, sizes in boxes_of_range(rest, begin, end):
        yield (number, *offsets), (1, *sizes)
