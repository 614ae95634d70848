"""Slices of long computations: a generator that pauses after each slice and returns its result.

The master takes no input while a policy computes. Judging ten thousand ranks takes seconds, so such
a policy is a generator: its caller runs one slice at a time and takes inputs in between. A small
world fits into the first slice.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")

Slices = Generator[None, None, T]
"""A computation that yields after each slice and returns its result."""

SLICE_VALUES: Final = 100_000
"""Times of issue of one slice: 5 to 15 ms of CPU time."""
SLICE_RANKS: Final = 1_000
"""Ranks of one slice where a rank takes some 10 µs: 10 ms of CPU time."""


def finished(work: Slices[T]) -> T:
    """Run all slices; return the result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
