"""Teardown of an ended script, as the interpreter would do it, and no more; with a time limit.

Modules imported before the script stay whole: torch's process groups have threads that a full
teardown may wait for, or crash on.
"""

from __future__ import annotations

import _thread
import ctypes
import faulthandler
import functools
import gc
import io
import os
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from holdfast_agent.zygote.files import flush_files, holds_output

CLEAN_SECONDS: Final = 10.0
"""Seconds for the destructors of a script that succeeded; joining the workers of a data loader, the
slowest of torch's own, may take 5 s."""
FAILED_SECONDS: Final = 2.0
"""The same for a script that failed: other ranks wait for the next round."""
_CLOSABLE: Final = (
    ("zipfile", "ZipFile"),
    ("tarfile", "TarFile"),
    ("shelve", "Shelf"),
    ("tempfile", "_TemporaryFileWrapper"),
)
"""Classes that are no files themselves, with a `close` that writes or removes a file."""


def tear_down(imported_before: frozenset[str], status: int) -> None:
    """Free the script's objects and close its files; end the process if that takes too long.

    imported_before: Names of modules; what they have is not the script's, and is not freed.
    status: Exit status of the process; negative for a signal.
    """
    # A daemon thread would find its globals gone. python stops it before that.
    alone = len(sys._current_frames()) == 1  # noqa: SLF001
    limit = FAILED_SECONDS if status else CLEAN_SECONDS
    call_off = exit_after(
        limit,
        128 - status if status < 0 else status,
        f"the script has ended, but the destructors of what it leaves took longer than "
        f"{limit:.0f} s: the process ends without the rest of them.",
    )
    _forget_exceptions()
    if alone:
        _free(imported_before)
    else:
        threading.excepthook = lambda _: None  # it may write to a file that is closed now
    flush_files()
    if holds_output():
        _close_files()
    call_off()


def has_unfinished_files() -> bool:
    """Return True if an open file is not finished by a flush alone, such as an archive."""
    if not holds_output():
        return False
    return any(_depth(thing) in (1, 2) for thing in _open_files())


# --- freeing ------------------------------------------------------------------------------------


def _forget_exceptions() -> None:
    """Drop the references to the frames of the script's functions, and so their variables."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    sys.excepthook, sys.displayhook = sys.__excepthook__, sys.__displayhook__


def _free(imported_before: frozenset[str]) -> None:
    """Release the script's own modules, first as a whole, then name by name, as python does."""
    modules = _let_go([name for name in list(sys.modules) if _is_scripts(name, imported_before)])
    gc.collect()  # runs destructors while their variables still exist
    for reference in reversed(modules):
        module = reference()
        if module is not None:
            _clear(vars(module))
    gc.collect()


def _let_go(names: list[str]) -> list[weakref.ref[Any]]:
    """Remove modules from sys.modules for good: no destructor imports one again."""
    references = []
    for name in names:
        with suppress(TypeError):  # a script may put any object there
            references.append(weakref.ref(sys.modules[name]))
        sys.modules[name] = None  # type: ignore[assignment]
    return references


def _clear(variables: dict[str, Any]) -> None:
    """Set a module's variables to None, private ones first."""
    for private in (True, False):
        for name in list(variables):
            is_private = name.startswith("_") and not name.startswith("__")
            if name != "__builtins__" and is_private is private:
                variables[name] = None


def _is_scripts(name: str, imported_before: frozenset[str]) -> bool:
    """Return True if the script imported a module that is neither installed nor python's own."""
    if name in ("__main__", "__mp_main__"):
        return True
    if name in imported_before or name.partition(".")[0] == "holdfast":
        return False
    file = getattr(sys.modules[name], "__file__", None)
    return isinstance(file, str) and not os.path.realpath(file).startswith(_installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{os.path.realpath(place)}/" for place in places)


# --- closing ------------------------------------------------------------------------------------


def _close_files() -> None:
    """Close the files that are still open, an outer file before the one that it writes to."""
    for thing in sorted(_open_files(), key=_depth):
        with suppress(Exception):
            if not _is_standard(thing):
                thing.close()


def _open_files() -> list[Any]:
    wrappers = (getattr(sys.modules.get(module), name, None) for module, name in _CLOSABLE)
    kinds = (io.IOBase, *(kind for kind in wrappers if isinstance(kind, type)))
    # isinstance would ask dead weak proxies
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]
    return [thing for thing in found if not _is_closed(thing)]


def _is_closed(thing: Any) -> bool:
    try:
        return getattr(thing, "closed", False) is True
    except Exception:  # noqa: BLE001 - a property of anybody's class
        return True


def _depth(thing: Any) -> int:
    """Return the order of closing: text, compression, archive, plain file."""
    kind = type(thing)
    if not issubclass(kind, io.IOBase):
        return 2
    if kind.__module__ == "_io":
        return 0 if issubclass(kind, io.TextIOWrapper) else 3
    return 1


def _is_standard(thing: Any) -> bool:
    try:
        return thing.fileno() in (0, 1, 2)
    except (AttributeError, OSError, ValueError):
        return False


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
