"""File system operations of a commit: as few as possible; each may fail or be lost.

A test's subclass forgets whatever was not synchronised.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
from typing import Any, Final

_AT_FDCWD: Final = -100
_NOREPLACE: Final = 1
_EXCHANGE: Final = 2
DIRECT_ALIGN: Final = 4096


class Disk:
    """The file system of this machine; a method raises OSError as the system call of its name."""

    def make_dir(self, path: str) -> None:
        """Make a directory; FileExistsError if it is there."""
        os.mkdir(path, 0o755)  # noqa: PTH102 - this class is about system calls

    def create(self, path: str, *, direct: bool) -> int:
        """Open a new file; direct: bypass the page cache, if this file system can."""
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
        """Append all of `data`; to a direct file only multiples of `DIRECT_ALIGN`."""
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
        """Cut the file."""
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        """Make the file's content durable."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Close the file; its content need not be durable."""
        os.close(handle)

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, old: str, new: str) -> None:
        """Rename; an existing file is replaced."""
        os.rename(old, new)  # noqa: PTH104

    def rename_new(self, old: str, new: str) -> None:
        """Rename; FileExistsError if `new` exists."""
        _renameat2(old, new, _NOREPLACE)

    def exchange(self, one: str, other: str) -> None:
        """Exchange the names of two directories, atomically."""
        _renameat2(one, other, _EXCHANGE)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)  # noqa: PTH108

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all below it, or a link; another process may do so too."""
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
        """Return the names in a directory."""
        return os.listdir(path)  # noqa: PTH208

    def names_if_any(self, path: str) -> list[str]:
        """Return the names in a directory; none where there is no directory."""
        try:
            return self.names(path)
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        """Return a file's length."""
        return os.stat(path).st_size  # noqa: PTH116

    def read(self, path: str) -> bytes:
        """Return a file's content."""
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()

    def view(self, path: str) -> memoryview:
        """Return a file's content without reading all of it at once.

        A read error then ends the process with SIGBUS: read the file through `open` before.
        """
        with open(path, "rb") as file:  # noqa: PTH123
            if not os.fstat(file.fileno()).st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))

    def open(self, path: str) -> int:
        """Open a file to read."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read_at(self, handle: int, at: int, buffer: memoryview) -> int:
        """Fill a buffer from an offset on; return the number of bytes, 0 at the end."""
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
