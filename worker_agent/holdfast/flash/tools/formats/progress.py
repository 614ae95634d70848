"""A bar on a terminal: how much of a conversion is done."""

from __future__ import annotations

import sys
import time
from typing import Final, TextIO

_WIDTH: Final = 30
_SECONDS: Final = 0.1
"""Seconds between two pictures."""


class Bar:
    """Draws a bar over itself; on anything but a terminal it draws nothing."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        """total: bytes."""
        self._stream = sys.stderr if stream is None else stream
        self._total, self._done, self._drawn = max(total, 1), 0, 0.0
        self._on = self._stream.isatty()

    def __call__(self, more: int) -> None:
        """Take bytes that were done."""
        self._done += more
        now = time.monotonic()
        if self._on and (now - self._drawn >= _SECONDS or self._done >= self._total):
            self._drawn = now
            part = min(1.0, self._done / self._total)
            full = int(_WIDTH * part)
            size = f"{self._done / 2**20:.0f} of {self._total / 2**20:.0f} MiB"
            self._stream.write(f"\r[{'#' * full}{' ' * (_WIDTH - full)}] {part:4.0%} {size} ")
            self._stream.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._on and self._drawn:
            self._stream.write("\n")
            self._stream.flush()
