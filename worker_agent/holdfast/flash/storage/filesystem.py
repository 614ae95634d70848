"""File system operations of a commit: as few as possible; each may fail or be lost.

A test replaces them with a disk that forgets whatever was not synchronised.
"""

# ruff: noqa: D102 - the methods of PosixDisk are those of the protocol
from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
from typing import Any, Final, Protocol

_AT_FDCWD: Final = -100
_NOREPLACE: Final = 1
_EXCHANGE: Final = 2
DIRECT_ALIGN: Final = 4096


class Disk(Protocol):
    """Every method raises OSError as the system call of its name would."""

    def make_dir(self, path: str) -> None:
        """Make a directory; FileExistsError if it is there."""

    def create(self, path: str, *, direct: bool) -> int:
        """Open a new file; direct: bypass the page cache, if this file system can."""

    def write(self, handle: int, data: bytes | memoryview) -> None:
        """Append all of `data`; to a direct file only multiples of `DIRECT_ALIGN`."""

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file."""

    def sync(self, handle: int) -> None:
        """Make the file's content durable."""

    def close(self, handle: int) -> None:
        """Close the file; its content need not be durable."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""

    def rename(self, old: str, new: str) -> None:
        """Rename; an existing file is replaced."""

    def rename_new(self, old: str, new: str) -> None:
        """Rename; FileExistsError if `new` exists."""

    def exchange(self, one: str, other: str) -> None:
        """Exchange the names of two directories, atomically."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all below it, or a link; another process may do so too."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""

    def size(self, path: str) -> int:
        """Return a file's length."""

    def read(self, path: str) -> bytes:
        """Return a file's content."""

    def view(self, path: str) -> memoryview:
        """Return a file's content without reading all of it at once.

        A read error then ends the process with SIGBUS: read the file through `open` before.
        """

    def open(self, path: str) -> int:
        """Open a file to read."""

    def read_at(self, handle: int, at: int, buffer: memoryview) -> int:
        """Fill a buffer from an offset on; return the number of bytes, 0 at the end."""


class PosixDisk:
    """The file system of this machine."""

    def make_dir(self, path: str) -> None:
        os.mkdir(path, 0o755)  # noqa: PTH102 - this class is about system calls

    def create(self, path: str, *, direct: bool) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        if direct:
            try:
                return os.open(path, flags | os.O_DIRECT, 0o644)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)  # noqa: PTH108 - Linux may leave the file it refused to open
        return os.open(path, flags, 0o644)

    def write(self, handle: int, data: bytes | memoryview) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            try:
                done = os.write(handle, rest)
            except OSError as error:
                if error.errno != errno.EINVAL or not _cached(handle):
                    raise
                continue  # a memory or file system without direct writes
            if done % DIRECT_ALIGN and done < len(rest):
                _cached(handle)  # a direct write is not possible at such an offset
            rest = rest[done:]

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        os.fsync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def sync_dir(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)  # noqa: PTH104

    def rename_new(self, old: str, new: str) -> None:
        _renameat2(old, new, _NOREPLACE)

    def exchange(self, one: str, other: str) -> None:
        _renameat2(one, other, _EXCHANGE)

    def unlink(self, path: str) -> None:
        os.unlink(path)  # noqa: PTH108

    def remove_tree(self, path: str) -> None:
        while True:
            try:
                if os.path.islink(path):  # noqa: PTH114
                    os.unlink(path)  # noqa: PTH108 - what it leads to is somebody else's
                else:
                    shutil.rmtree(path)
            except FileNotFoundError:
                if not os.path.lexists(path):
                    return
            else:
                return

    def names(self, path: str) -> list[str]:
        return os.listdir(path)  # noqa: PTH208

    def size(self, path: str) -> int:
        return os.stat(path).st_size  # noqa: PTH116

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()

    def view(self, path: str) -> memoryview:
        with open(path, "rb") as file:  # noqa: PTH123
            if not os.fstat(file.fileno()).st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read_at(self, handle: int, at: int, buffer: memoryview) -> int:
        return os.preadv(handle, [buffer], at)


def _cached(handle: int) -> bool:
    """Use the page cache for a file from now on; return False if it was in use already."""
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    fcntl.fcntl(handle, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    return bool(flags & os.O_DIRECT)


def _renameat2(old: str, new: str, flag: int) -> None:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    old_path, new_path = os.fsencode(old), os.fsencode(new)
    if libc.renameat2(_AT_FDCWD, old_path, _AT_FDCWD, new_path, ctypes.c_uint(flag)) == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(code, os.strerror(code), old, None, new)
    if flag == _EXCHANGE:
        raise OSError(code, "this file system cannot exchange two names", old, None, new)
    # NFS and others: a plain rename never replaces a directory that is not empty, and a committed
    # step is not empty.
    try:
        os.rename(old, new)  # noqa: PTH104
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from error
        raise
