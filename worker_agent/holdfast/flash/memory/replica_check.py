"""Sketches of data that ranks should have equal: a few numbers per tensor and value. No torch.

A rank sends its sketches with a save to storage, in an item of its image that is in no file. A
commit compares those of all ranks.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final
from zlib import crc32

ITEM: Final = "sketches"
"""Name of the item; nothing in the state has it."""
_HEAD: Final = struct.Struct("<QIIf")
_ENTRY: Final = struct.Struct("<QII5f")
_NUMBERS: Final = struct.Struct("<4f")
ENTRY_BYTES: Final = _ENTRY.size
_NOTHING: Final = 1e-30
"""Norm below which numbers count as zero: close to float32's least, they have few bits."""


def head(name: str, box: str, exact: str, tolerance: float) -> bytes:
    """Return the part of a sketch that says what the numbers are of.

    box: part of the tensor that the rank has: ranks with other parts are not compared.
    exact: text that must be equal: dtype and shape of a tensor, all of a value but its floats.
    tolerance: relative distance up to which the numbers count as alike.
    """
    return _HEAD.pack(hash_of(name), crc32(box.encode()), crc32(exact.encode()), tolerance)


def entry(head: bytes, norm: float, sums: tuple[float, float, float]) -> bytes:
    """Return the sketch of one box of a tensor, or of a value.

    norm: of the samples; within float32, or infinite. sums: of samples with fixed signs; their
    distance estimates that of the samples.
    """
    return head + _NUMBERS.pack(norm, *sums)


def hash_of(name: str) -> int:
    """Return the hash of a name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def unlike(sketches: Mapping[int, bytes]) -> Iterator[tuple[int, int, int]]:
    """Compare the sketches of ranks; an empty one was not sent and is not compared.

    Yields:
        Hash of the name, and two ranks with different values under it; once for each name.
    """
    known: dict[bytes, tuple[int, bytes]] = {}
    told, seen = set[int](), set[bytes]()
    for rank, body in sorted(sketches.items()):
        if body in seen:
            continue  # the usual case under DDP: all bytes are equal
        seen.add(body)
        pairs: dict[tuple[int, int, float], _Pair] = {}
        for at in range(0, len(body) - ENTRY_BYTES + 1, ENTRY_BYTES):
            entry = body[at : at + ENTRY_BYTES]
            other, first = known.setdefault(entry[:12], (rank, entry))
            if other != rank:
                name, _, _, tolerance, *_ = _ENTRY.unpack(entry)
                pairs.setdefault((name, other, tolerance), _Pair()).add(first, entry)
        for (name, other, tolerance), pair in pairs.items():
            if name not in told and not pair.is_alike(tolerance):
                told.add(name)
                yield name, other, rank


@dataclass(slots=True)
class _Pair:
    """All boxes of one tensor that two ranks have: a few elements alone can be close to zero."""

    is_exact: bool = True
    """All that must be equal is."""
    squares: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Of the norms of both, and of the distance."""

    def add(self, one: bytes, other: bytes) -> None:
        """Add the sketches of a box."""
        _, _, mine, _, *numbers = _ENTRY.unpack(one)
        _, _, its, _, *others = _ENTRY.unpack(other)
        finite = [all(map(math.isfinite, each)) for each in (numbers, others)]
        self.is_exact &= mine == its and finite[0] == finite[1]
        if all(finite):
            distance = math.dist(numbers[1:], others[1:]) / math.sqrt(len(numbers) - 1)
            for at, size in enumerate((numbers[0], others[0], distance)):
                self.squares[at] += size * size

    def is_alike(self, tolerance: float) -> bool:
        """Return True if the ranks differ by rounding only."""
        one, other, distance = map(math.sqrt, self.squares)
        norm = max(one, other)
        return self.is_exact and (norm < _NOTHING or distance <= tolerance * norm)
