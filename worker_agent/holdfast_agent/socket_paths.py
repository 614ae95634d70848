"""Paths of Unix sockets that may be longer than a socket's address can hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LONGEST: Final = 107
"""Bytes of the longest path in a Unix socket's address."""


@contextmanager
def short_path(path: str | Path) -> Iterator[str]:
    """Give a path to the same socket that is short enough, for bind or connect, within the block.

    A long one goes by a descriptor of its folder, as `/proc/self/fd/N/NAME`. Raises OSError if
    there is no such folder.
    """
    if len(os.fsencode(path)) <= LONGEST:
        yield str(path)
        return
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
