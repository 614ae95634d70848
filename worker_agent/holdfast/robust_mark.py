"""A mark in the shared page that the kernel sets when a trainer dies, before it frees its memory.

A trainer's main thread holds a robust mutex for life. Marking the mutex and waking its waiter are
among the first things that the kernel does for a dying thread. Only then does it free the memory of
the process, which takes 0.1 s per GiB, and tell the parent. The mark is only a reason to look,
because `exec` sets it too. The agent looks, and decides what a death means.

The C library makes the mutex, so nothing is compiled here. Where the C library cannot, no thread
holds the mutex and the mark is never set.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
from functools import cache
from typing import Any, Final

from holdfast.page_layout import MARK_BYTES, MARK_OFFSET, PAGE_BYTES

OWNER_DIED: Final = 0x4000_0000
"""Bit that the kernel sets in the word of a mutex whose owner ended or became another program."""
WAITERS: Final = 0x8000_0000

_FUTEX_CALLS: Final = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT: Final = 0
_FUTEX_WAKE: Final = 1
_EVERYBODY: Final = 2**31 - 1
_LOOK_AGAIN: Final = frozenset({0, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT})
"""Ways in which a wait returns: woken, changed before it began, disturbed, timed out."""
_PROCESS_SHARED: Final = 1
_ROBUST: Final = 1
_ATTRIBUTE_BYTES: Final = 64
"""Room for a pthread_mutexattr_t, which is 4 to 8 bytes long."""


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class RobustMark:
    """The mark of one slot, in a mapping of its own: `Page.close` must not take it away."""

    def __init__(self, page_fd: int, slot: int) -> None:
        """Map the page behind `page_fd`, which has that slot."""
        self._map = mmap.mmap(page_fd, (2 + slot) * PAGE_BYTES)
        at = (1 + slot) * PAGE_BYTES + MARK_OFFSET
        # A buffer that is lent keeps the mapping from being closed.
        self._mutex = (ctypes.c_char * MARK_BYTES).from_buffer(self._map, at)
        self._word = ctypes.c_uint32.from_buffer(self._map, at)

    def word(self) -> int:
        """Return the word now: 0 (never held), its holder, or a value with OWNER_DIED."""
        return self._word.value

    def hold(self) -> bool:
        """Hold the mutex until this process ends; return True on success. Call it once only.

        Only in the main thread: any other thread may end before its process.
        """
        # The C library links this memory to other mutexes, so it stays mapped until the process
        # ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._map))
        if not _lock(ctypes.addressof(self._mutex)):
            return False
        if self._word.value != os.getpid():  # a C library that lays a mutex out differently
            return False
        # The kernel wakes no thread unless the word says that one waits. None waits yet.
        self._word.value |= WAITERS
        self.wake()
        return True

    def wait(self, seen: int, timeout_s: float) -> int:
        """Return the word once it is not `seen`, or after `timeout_s`, or at a `wake`.

        One waiter at most: the kernel wakes one. Raises OSError where waiting is not possible.
        """
        whole, part = divmod(round(timeout_s * 1e9), 1_000_000_000)
        problem = _futex(self._word, _FUTEX_WAIT, seen, ctypes.byref(_Time(whole, part)))
        if problem not in _LOOK_AGAIN:
            raise OSError(problem, os.strerror(problem))
        return self.word()

    def wake(self) -> None:
        """Make `wait` return."""
        _futex(self._word, _FUTEX_WAKE, _EVERYBODY, None)


def _futex(word: ctypes.c_uint32, operation: int, value: int, timeout: Any) -> int:
    """Make the system call; return the error's number, 0 for none."""
    number = _FUTEX_CALLS.get(platform.machine())
    if number is None:
        return errno.ENOSYS
    arguments = (
        ctypes.c_long(number),
        ctypes.byref(word),
        ctypes.c_int(operation),
        ctypes.c_uint32(value),
        timeout,
    )
    return ctypes.get_errno() if _libc().syscall(*arguments) == -1 else 0


def _lock(address: int) -> bool:
    """Make a robust mutex at `address` and lock it."""
    mutex, attribute = ctypes.c_void_p(address), ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    libc = _libc()
    try:
        steps = (
            libc.pthread_mutexattr_init(attribute),
            libc.pthread_mutexattr_setpshared(attribute, _PROCESS_SHARED),
            libc.pthread_mutexattr_setrobust(attribute, _ROBUST),
            libc.pthread_mutex_init(mutex, attribute),
        )
        return not any(steps) and libc.pthread_mutex_lock(mutex) == 0
    except AttributeError:  # a C library without robust mutexes
        return False


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
