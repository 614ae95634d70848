"""Ends this process with a given status after a time, whatever its threads are doing.

Belongs here: the timer, and the text at its end. Does not belong here: the slow work (`teardown`).
The timer works even while a destructor in C holds the interpreter's lock.
"""

from __future__ import annotations

import _thread
import ctypes
import faulthandler
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_CLOCK_MONOTONIC: Final = 1
_SIGEV_THREAD: Final = 2
_MARGIN_SECONDS: Final = 1.0
"""From the time at which Python code should have ended the process to the kernel's timer, s."""


class _SignalEvent(ctypes.Structure):
    """C's struct sigevent, with the members of SIGEV_THREAD."""

    _fields_ = (
        ("value", ctypes.c_long),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("room", ctypes.c_char * 64),
    )


class _TimerSpec(ctypes.Structure):
    """C's struct itimerspec."""

    _fields_ = (
        ("every_s", ctypes.c_long),
        ("every_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


def exit_after(seconds: float, status: int, text: str) -> Callable[[], None]:
    """Start the timer; return the function that stops it.

    Args:
        seconds: Time until the process ends, s.
        status: Exit status, 0 to 255.
        text: Written to standard error before the end, with the stacks of all threads.
    """
    lock = _thread.allocate_lock()
    lock.acquire()

    def watch() -> None:
        if not lock.acquire(timeout=seconds):
            _say(text)
            os._exit(status)

    with suppress(RuntimeError):  # if no thread can be started, the kernel's timer is left
        _thread.start_new_thread(watch, ())
    with suppress(OSError, ValueError, RuntimeError):
        faulthandler.dump_traceback_later(seconds + _MARGIN_SECONDS / 2, file=2)
    end_timer = _start_timer(seconds + _MARGIN_SECONDS, status)

    def call_off() -> None:
        lock.release()
        faulthandler.cancel_dump_traceback_later()
        end_timer()

    return call_off


def _say(text: str) -> None:
    with suppress(OSError, ValueError):
        os.write(2, f"holdfast: {text} Where its threads stand:\n".encode())
        faulthandler.dump_traceback(file=2, all_threads=True)


def _start_timer(seconds: float, status: int) -> Callable[[], None]:
    """Have the C library call `_exit(status)` on its own thread; return the function to stop it."""
    libc = ctypes.CDLL(None)
    event = _SignalEvent(
        value=status,
        notify=_SIGEV_THREAD,
        function=ctypes.cast(libc._exit, ctypes.c_void_p).value,  # noqa: SLF001 - C's own name
    )
    timer = ctypes.c_void_p()
    if not hasattr(libc, "timer_create") or libc.timer_create(
        _CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)
    ):
        return lambda: None
    due = _TimerSpec(first_s=int(seconds), first_ns=int(seconds % 1 * 1e9))
    libc.timer_settime(timer, 0, ctypes.byref(due), None)
    return lambda: libc.timer_delete(timer)
