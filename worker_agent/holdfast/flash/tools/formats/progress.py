"""Progress of a conversion: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from typing import Final, Self, TextIO

_WIDTH: Final = 30
_PICTURE_S: Final = 0.1
"""Seconds between two pictures of the bar."""
_LINE_S: Final = 5.0
"""Seconds between two lines in a log; shorter work writes none."""


class Bar:
    """Draws a bar over itself; on anything but a terminal it writes lines."""

    def __init__(self, total: int, stream: TextIO | None = None, line_s: float = _LINE_S) -> None:
        """total: bytes. line_s: seconds between two lines."""
        self._stream = sys.stderr if stream is None else stream
        self._total, self._done = max(total, 1), 0
        self._terminal = self._stream.isatty()
        self._pause = _PICTURE_S if self._terminal else line_s
        self._drawn = 0.0 if self._terminal else time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the line."""
        if self._terminal and self._drawn:
            self._stream.write("\n")
            self._stream.flush()

    def __call__(self, more: int) -> None:
        """Take bytes that were done."""
        self._done += more
        now, part = time.monotonic(), min(1.0, self._done / self._total)
        last = self._terminal and self._done >= self._total
        if now - self._drawn < self._pause and not last:
            return
        self._drawn = now
        size = f"{part:4.0%} {self._done / 2**20:.0f} of {self._total / 2**20:.0f} MiB"
        if self._terminal:
            full = int(_WIDTH * part)
            self._stream.write(f"\r[{'#' * full}{' ' * (_WIDTH - full)}] {size} ")
        else:
            self._stream.write(f"holdfast: {size.lstrip()}\n")
        self._stream.flush()
