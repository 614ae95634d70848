"""Copies many ranges of memory in one call that holds no interpreter lock.

The fast way is `copy.c`, compiled into the wheel. Without it, ctypes' memmove does the same,
slower. Both take addresses: the caller keeps the memory alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from holdfast.page_layout import fence

_LIBRARY: Final = Path(__file__).with_name("libcopy.so.1")
"""A name that Python does not take for a module."""
_WORDS: Final = 3


@dataclass(frozen=True, slots=True)
class CopyRange:
    """`size` bytes to copy between two addresses."""

    to: int
    source: int
    size: int


class CopyRanges:
    """Ranges prepared once and copied often; copying allocates nothing."""

    def __init__(self, pieces: Iterable[CopyRange]) -> None:
        words = [
            word for piece in pieces if piece.size for word in (piece.to, piece.source, piece.size)
        ]
        self._words = (ctypes.c_uint64 * len(words))(*words)
        self.count = len(words) // _WORDS
        self.size = sum(words[2::_WORDS])
        """Bytes of all pieces."""

    def copy(self, threads: int = 1) -> None:
        """Copy all pieces; a process that sees a later store sees every byte of them too."""
        helper = copy_helper()
        if helper is not None:
            helper(self._words, self.count, threads)
            return
        words = self._words
        for at in range(0, len(words), _WORDS):
            ctypes.memmove(words[at], words[at + 1], words[at + 2])
        fence()


@cache
def copy_helper() -> Any:
    """Return the compiled helper's function; None: it is not there."""
    try:
        library = ctypes.CDLL(str(_LIBRARY))
    except OSError:
        return None
    function = library.holdfast_copy
    function.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int]
    function.restype = ctypes.c_int
    return function
