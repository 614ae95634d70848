"""Calls to the filesystem: the steps that make a file durable, and opening a plain file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


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


def write_synced(path: Path, data: bytes) -> None:
    """Make a file of `data`, and have the disk hold it."""
    file = create(path)
    try:
        write(file, data)
        sync(file)
    finally:
        os.close(file)


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


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading, without waiting: opening a pipe of this name would wait for ever.

    Raises:
        FileNotFoundError: nothing has this name (any more).
        OSError: it cannot be read, is no file, or a link that leads to nothing.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link that leads to nothing", str(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise
