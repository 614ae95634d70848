"""The steps that make a file durable, each one call to the system, and nothing else.

Belongs here: what a test replaces to stop a writer between two steps. Does not belong here: in
which order they are taken (see `journal` and `compaction`).
"""

from __future__ import annotations

import os
from pathlib import Path


def create(path: Path) -> int:
    """Make a new file for writing, 0600, and return its descriptor; one that exists is emptied."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)


def write(file: int, data: bytes) -> None:
    """Write all of `data` at the file's end."""
    view, done = memoryview(data), 0
    while done < len(data):
        done += os.write(file, view[done:])


def sync(file: int) -> None:
    """Have the disk hold what was written."""
    os.fsync(file)


def rename(old: Path, new: Path) -> None:
    """Give the file its name: readers see all of it or nothing."""
    old.rename(new)


def remove(path: Path) -> None:
    """Take a file away; one that is gone already is no error."""
    path.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Have the disk hold the names of the directory's files."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
