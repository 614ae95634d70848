"""Standard streams and open files of a worker: redirect, make unbuffered, flush before the end."""

from __future__ import annotations

import fcntl
import gc
import io
import os
import select
import stat
import sys
from contextlib import suppress
from typing import Any

from holdfast_agent.zygote.preload import open_descriptors

_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def redirect(target: str | None, fd: int) -> None:
    """Redirect descriptor 1 or 2 to a file, emptied first; None leaves it as inherited."""
    if target is None:
        return
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    os.dup2(file, fd)
    os.close(file)


def unbuffer() -> None:
    """Give this process fresh, unbuffered stdout and stderr, as torchrun's `python -u` has."""
    sys.stdout = sys.__stdout__ = _unbuffered(1, sys.__stdout__)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _unbuffered(2, sys.__stderr__)  # type: ignore[misc]


def _unbuffered(fd: int, old: io.TextIOWrapper | None) -> io.TextIOWrapper | None:
    try:
        raw = _Whole(fd, "w", closefd=False)
    except OSError:  # closed, as with `>&-`: python has no stream then either
        return None
    raw.name = "<stdout>" if fd == 1 else "<stderr>"
    return io.TextIOWrapper(
        raw,
        encoding=old.encoding if old else None,
        errors=old.errors if old else "backslashreplace",
        write_through=True,
    )


class _Whole(io.FileIO):
    """A file that takes all of what it is given, as a buffered one would.

    A write to a full pipe takes a part if a signal arrives, and nothing if somebody who has the
    pipe too has made it non-blocking. A text stream right above would drop the rest.
    """

    def write(self, data: Any, /) -> int:
        """Write everything, waiting for the reader as long as it takes."""
        view, done = memoryview(data).cast("B"), 0
        while done < len(view):
            count: int | None = super().write(view[done:])
            if count is None:
                poll = select.poll()
                poll.register(self.fileno(), select.POLLOUT)
                poll.poll()
            else:
                done += count
        return done


def flush_files() -> None:
    """Flush every file object that the script left open, as the interpreter's teardown would.

    It looks only if a descriptor is open for writing to a file or pipe, and not at objects from
    before the fork (they are frozen out of the collector's list).
    """
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    if holds_output():
        for thing in gc.get_objects():
            if issubclass(type(thing), _WRITERS):  # isinstance would ask dead weak proxies
                _flush(thing)


def holds_output() -> bool:
    """Return True if one of the script's descriptors is open for writing to a file or pipe."""
    return any(fd > 2 and _is_output(fd) for fd in open_descriptors())


def _is_output(fd: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:
        return False
    return access != os.O_RDONLY and (stat.S_ISREG(mode) or stat.S_ISFIFO(mode))


def _flush(stream: object) -> None:
    with suppress(OSError, ValueError, AttributeError):
        stream.flush()  # type: ignore[attr-defined]
