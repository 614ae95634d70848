"""One file mapped whole and shared, with its pages faulted in, large pages where possible.

Belongs here: the requests to the kernel about an arena's pages. No torch.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

LARGE: Final = 2 * 2**20
"""Bytes of a large page on x86-64 and arm64 (with pages of 4 KiB)."""
_CHUNK: Final = 32 * LARGE
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_MAP_FIXED_NOREPLACE: Final = 0x100000
_PROT_NONE: Final = 0
_MADV_DONTFORK: Final = 10
_MADV_POPULATE_READ: Final = 22
_MADV_POPULATE_WRITE: Final = 23
_MADV_COLLAPSE: Final = 25


class Mapping:
    """A mapped file; the descriptor is not kept."""

    def __init__(self, fd: int) -> None:
        """Map all of `fd`, which the caller still owns; raises `OSError`.

        Python's own mapping of a file holds a copy of the descriptor for as long as it lives. A
        forked child would inherit that copy and pin the memory, whatever the mapping's own flags
        are. So this class lays the file over an anonymous mapping. The address is the next multiple
        of `LARGE`, so that a large page of the file can be a large page of the process.
        """
        size = os.fstat(fd).st_size
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._place = mmap.mmap(-1, size + LARGE, flags=flags)
        self._begin = ctypes.addressof(ctypes.c_char.from_buffer(self._place))
        offset = -self._begin % LARGE
        self.address = self._begin + offset
        """Address of the first byte in this process."""
        try:
            self._lay_over(fd, size)
        except OSError:
            self._place.close()
            raise
        self.memory = memoryview(self._place)[offset : offset + size]
        """All bytes of the file."""

    def _lay_over(self, fd: int, size: int) -> None:
        access = mmap.PROT_READ | mmap.PROT_WRITE
        if not _mapped_at(self.address, size, access, mmap.MAP_SHARED | _MAP_FIXED, fd):
            code = ctypes.get_errno()
            raise OSError(code, f"mapping an arena: {os.strerror(code)}")

    def keep_from_children(self) -> None:
        """Leave the mapping out of forked processes: a data loader's child must not pin it."""
        self._place.madvise(_MADV_DONTFORK)
        _NOT_IN_CHILDREN[self._place] = self._begin

    def fault_in(self, *, write: bool = True, threads: int = 1) -> None:
        """Fault all pages in, so that the first copy does not have to; raises `OSError`."""
        advice = _MADV_POPULATE_WRITE if write else _MADV_POPULATE_READ

        def one(at: int) -> None:
            code = self._advise(at, min(_CHUNK, len(self.memory) - at), advice)
            if code not in (0, errno.EINVAL):  # before Linux 5.14 the first copy faults pages in
                raise OSError(code, f"populating an arena: {os.strerror(code)}")

        _each(one, range(0, len(self.memory), _CHUNK), threads)

    def enlarge(self, *, threads: int) -> None:
        """Put the file into large pages, for all processes, if the kernel has some (Linux 6.1).

        A process that maps it later then faults in 2 MiB at a time, not 4 KiB, whatever the system
        settings for large pages are. Memory without a large page stays as it is.
        """

        def one(at: int) -> None:
            size = min(_CHUNK, whole - at)
            # The kernel skips an empty range: a large page needs one small page in it.
            for page in range(at, at + size, LARGE):
                if self._advise(page, mmap.PAGESIZE, _MADV_POPULATE_WRITE):
                    return
            self._advise(at, size, _MADV_COLLAPSE)

        whole = len(self.memory) // LARGE * LARGE
        _each(one, range(0, whole, _CHUNK), threads)

    def _advise(self, at: int, size: int, advice: int) -> int:
        address = ctypes.c_void_p(self.address + at)
        if _libc().madvise(address, ctypes.c_size_t(size), advice):
            return ctypes.get_errno()
        return 0

    def close(self) -> None:
        """Unmap; fails with BufferError while somebody still holds a view."""
        self.memory.release()
        if self._place not in _OVERLAID:
            self._place.close()
            _NOT_IN_CHILDREN.pop(self._place, None)  # something else may lie there by now


_NOT_IN_CHILDREN: Final = weakref.WeakKeyDictionary[mmap.mmap, int]()
"""Mappings that a forked child lacks, though it has the objects; each with its address."""
_OVERLAID: Final = list[mmap.mmap]()
"""Anonymous mappings in place of a parent's mappings. Never unmapped."""


def _keep_places() -> None:
    """In a forked child: reserve the address ranges of the parent's mappings.

    The child has the objects, and each object unmaps its range when it ends. Without the
    reservation that would unmap whatever the allocator had put there. (Seen: a child's own save,
    ended by SIGSEGV in 1 of 13 runs.)
    """
    for place, begin in list(_NOT_IN_CHILDREN.items()):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED_NOREPLACE
        if not _mapped_at(begin, len(place), _PROT_NONE, flags, -1):
            _OVERLAID.append(place)
            # For good: this module's list may end before the other objects do.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(place))
    _NOT_IN_CHILDREN.clear()


os.register_at_fork(after_in_child=_keep_places)


def _each(one: Callable[[int], None], at: range, threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(one, at):
            pass


def _mapped_at(address: int, size: int, access: int, flags: int, fd: int) -> bool:
    found = _libc().mmap(
        ctypes.c_void_p(address), ctypes.c_size_t(size), access, flags, fd, ctypes.c_long(0)
    )
    return bool(found == address)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    return libc
