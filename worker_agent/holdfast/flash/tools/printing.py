"""Prints for the tools: sizes, tables, progress; a reader of the pipe that goes, and Ctrl-C."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NoReturn, Self, TextIO

BAD_INPUT: Final = 2
NOBODY_READS: Final = 141
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as a shell's."""
_KIB: Final = 1024.0


def refuse(why: object, code: int = BAD_INPUT) -> int:
    """Print why nothing was done; return the exit code."""
    sys.stderr.write(f"holdfast: {why}\n")
    return code


def put(lines: Iterable[str], code: int) -> int:
    """Print lines; return the exit code, or 141 if the reader has closed the pipe."""
    try:
        sys.stdout.writelines(lines)
        sys.stdout.flush()
    except BrokenPipeError:  # the interpreter's flush at its end would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    return code


def end(main: Callable[[], int]) -> NoReturn:
    """Run a tool's main function, and end the process with its exit code."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stderr.write("holdfast: interrupted\n")
        sys.exit(INTERRUPTED)


def size_text(size: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < _KIB:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _KIB
    return f"{size:.1f} TiB"


def shape_text(shape: Sequence[int]) -> str:
    """Return a tensor's shape for people."""
    return "x".join(map(str, shape)) or "scalar"


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """Return rows with their columns under each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


_BAR_WIDTH: Final = 30
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
            full = int(_BAR_WIDTH * part)
            self._stream.write(f"\r[{'#' * full}{' ' * (_BAR_WIDTH - full)}] {size} ")
        else:
            self._stream.write(f"holdfast: {size.lstrip()}\n")
        self._stream.flush()
