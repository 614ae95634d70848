"""Keyed permutation of the numbers below n, computed number by number: no list is kept.

Belongs here: the permutation. Does not belong here: what the numbers stand for (`sample_map`).

A Feistel network over the smallest even count of bits that holds n is a permutation of those
numbers, whatever its round function; a result of n or more goes through it again until it is below
n (cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Fewer than four
passes are needed on average, since the network's range is less than 4·n. The round function mixes
64 bits as SplitMix64 does (Steele, Lea and Flood, OOPSLA 2014). This shuffles; it is no cipher.
"""

from __future__ import annotations

from typing import Final

_ROUNDS: Final = 6
"""Of the network: from four on, pairs of samples are as far apart as by a drawn shuffle."""
_WORD: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


class Permutation:
    """A permutation of range(size) that a seed and an epoch choose."""

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        """Choose it.

        Args:
            size: Numbers to permute, n; any from 1 on.
            seed: Of the training.
            epoch: Another one for each, from 0 on.

        Raises:
            ValueError: the size is not positive.
        """
        if size < 1:
            raise ValueError(f"size={size}: there must be one number or more to permute")
        self._size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        key = mixed(mixed(seed & _WORD) ^ (epoch & _WORD))
        self._keys = tuple(mixed(key + number * _GOLDEN & _WORD) for number in range(_ROUNDS))

    def __len__(self) -> int:
        """Return the count of numbers."""
        return self._size

    def __getitem__(self, place: int) -> int:
        """Return the number at a place; raises IndexError outside of 0 to n-1."""
        if not 0 <= place < self._size:
            raise IndexError(f"place {place}: there are {self._size}")
        found = self._passed(place)
        while found >= self._size:
            found = self._passed(found)
        return found

    def _passed(self, number: int) -> int:
        left, right, mask = number >> self._half, number & self._mask, self._mask
        for key in self._keys:
            left, right = right, left ^ (mixed(right ^ key) & mask)
        return left << self._half | right


def mixed(word: int) -> int:
    """Return 64 bits, each of which hangs on each of the given."""
    word = (word + _GOLDEN) & _WORD
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & _WORD
    return word ^ word >> 31
