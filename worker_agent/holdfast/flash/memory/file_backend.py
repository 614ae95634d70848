"""Arenas in files of a memory volume, which outlive the agent that made them.

Belongs here: the directory, its lock, making and removing files. No torch.

One agent at a time has the directory: it holds the lock of a file beside the arenas. Arenas that it
finds there are a dead agent's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from functools import partial
from typing import Final

from holdfast.flash.ids import unique
from holdfast.flash.memory.arena import Geometry, make
from holdfast.flash.memory.recovery import ArenaBackend, BackendError

PREFIX: Final = "arena-"
LOCK: Final = ".holdfast-lock"
_MIB: Final = 2**20
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class FileBackend(ArenaBackend):
    """Directory of one node's arenas; this process has it from `__init__` to `close`."""

    def __init__(self, folder: str, job: str) -> None:
        """Take the directory, for the job with this uid.

        Raises `BackendError` if it is missing, cannot be written, or another agent has it.
        """
        super().__init__(job)
        self.folder = folder
        self._lock = _locked(folder)

    @property
    def is_empty(self) -> bool:
        """True if no agent left an arena here."""
        return not self._paths()

    def make(self, table: bytes, geometry: Geometry) -> tuple[int, str]:
        """Return the descriptor and the path of a new arena.

        Its memory is allocated before any process maps it: in a full volume a write to the mapping
        would end the writer with SIGBUS.
        """
        path = f"{self.folder}/{PREFIX}{unique()}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, geometry.total)
                make(fd, table, geometry, self._job)
            except BaseException:
                os.close(fd)
                self.remove(path)
                raise
        except OSError as error:
            raise BackendError(self._no_room(geometry.total, error)) from error
        return fd, path

    def _no_room(self, needed: int, error: OSError) -> str:
        room = os.statvfs(self.folder)
        free = room.f_bavail * room.f_frsize
        return (
            f"an arena of {-(-needed // _MIB)} MiB does not fit into {self.folder}, which has "
            f"{free // _MIB} MiB left ({error.strerror}). Give that volume more room (sizeLimit), "
            "or save with fewer slots"
        )

    def _found(self) -> list[tuple[str, Callable[[], int]]]:
        return [(path, partial(os.open, path, _FLAGS)) for path in self._paths()]

    def _secure(self, fd: int, geometry: Geometry) -> None:
        os.posix_fallocate(fd, 0, geometry.total)  # a write to a hole would be a SIGBUS

    def remove(self, path: str) -> None:
        """Remove a file; a process that maps it keeps its memory."""
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - as the rest of the paths here

    def close(self) -> None:
        """Remove everything, and release the directory. A second call does nothing."""
        if self._lock < 0:
            return
        for path in self._paths():
            self.remove(path)
        self.remove(f"{self.folder}/{LOCK}")  # before it is unlocked: the next one makes its own
        os.close(self._lock)
        self._lock = -1

    def _paths(self) -> list[str]:
        with contextlib.suppress(OSError):
            names = sorted(os.listdir(self.folder))  # noqa: PTH208
            return [f"{self.folder}/{name}" for name in names if name.startswith(PREFIX)]
        return []


def _locked(folder: str) -> int:
    """Return the descriptor of the directory's lock, which is held until it is closed."""
    path = f"{folder}/{LOCK}"
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            text = f"arenas cannot be kept in {folder}: {error.strerror}. Mount a memory volume"
            raise BackendError(f"{text} there that this user can write to") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(fd, 20).decode(errors="replace").strip()
            os.close(fd)
            raise BackendError(
                f"{folder} is in use by another agent, process {holder or 'unknown'}: "
                "each agent needs a directory of its own"
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(fd).st_ino:  # noqa: PTH116
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                return fd
        os.close(fd)  # its holder removed it between our two calls
