"""How a fork leaves the zygote's loop."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

_HELD_BACK = (signal.SIGTERM, signal.SIGINT)


class InChild(BaseException):
    """Raised in a forked child, so that its task runs at the bottom of the stack.

    No `finally` clause may lie on the way: it would run in parent and child.
    """

    def __init__(self, task: Callable[[], NoReturn]) -> None:
        """`task` is what the child is for."""
        super().__init__()
        self.task = task


def flush_streams() -> None:
    """Write out what is buffered, or parent and child would both do so later."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, or nobody reads
            stream.flush()


def fork(task: Callable[[], NoReturn]) -> int:
    """Fork; return the child's pid in the parent, raise `InChild` in the child.

    Signals that could end the child are held back until it has its own handlers; it unblocks them.
    """
    flush_streams()
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
        raise
    if pid == 0:
        raise InChild(task)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
    return pid
