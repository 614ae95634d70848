"""Prints for the tools: sizes, tables; a reader of the pipe that goes, and Ctrl-C."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NoReturn

NOBODY_READS: Final = 141
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as a shell's."""
_KIB: Final = 1024.0


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


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """Return rows with their columns under each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)
