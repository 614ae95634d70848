"""Hashes of a checkpoint's items: xxh3-64, at memory speed."""

from __future__ import annotations

from collections.abc import Sequence


def hash64(data: bytes | memoryview) -> int:
    """Return xxh3-64 of some bytes; other threads run meanwhile."""
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(data)


def hash_items(image: memoryview, spans: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the hash of each item of an image.

    Args:
        image: The bytes of one rank.
        spans: (begin, length) of each item, bytes.

    Returns:
        One xxh3-64 per span, in their order.
    """
    return tuple(hash64(image[begin : begin + length]) for begin, length in spans)
