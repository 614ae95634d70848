"""Arenas in files of a memory volume, which outlive the agent that made them.

Belongs here: the directory, its lock, making and removing files, and what of a dead agent's files
may be trusted. Does not belong here: what an arena is (`arena`), who gets it (`keeper`). No torch.

One agent at a time has the directory: it holds the lock of a file beside the arenas. Who finds
arenas there finds a dead agent's, but its trainers may die a moment later than it did: a file that
another process still has mapped is waited for, and given up in the end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import time
from dataclasses import dataclass
from typing import Final

from holdfast.flash.arena import Arena, ArenaError, Geometry, Slot, make
from holdfast.flash.commit import unique
from holdfast.flash.decide.slots import Move, SlotState
from holdfast.flash.header import SlotWord
from holdfast.flash.manifest import hash_items

PREFIX: Final = "arena-"
LOCK: Final = ".holdfast-lock"
PATIENCE_S: Final = 10.0
"""For a dead agent's trainers to die. Their zygote sees the lease run out after 4 s at most."""
_LOOK_S: Final = 0.02
_MIB: Final = 2**20
_F_SETSIG: Final = 10
_F_SETLEASE: Final = 1024
_NO_LEASES: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class VolumeError(Exception):
    """The directory cannot be used; the text names it and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """An arena that a dead agent left, cleared of all that cannot be trusted."""

    arena: Arena
    fd: int
    path: str


class Volume:
    """The directory of one node's arenas; from `__init__` to `close` it is this process's."""

    def __init__(self, folder: str, job: str) -> None:
        """Take the directory, for the job of this uid.

        Raises `VolumeError` where it is missing, cannot be written, or is another agent's.
        """
        self.folder, self._job = folder, job
        self._lock = _locked(folder)

    @property
    def is_empty(self) -> bool:
        """Whether nobody left an arena here."""
        return not self._paths()

    def make(self, table: bytes, geometry: Geometry) -> tuple[int, str]:
        """Return the descriptor and the path of a new arena.

        Its room is allocated before anything maps it: a volume that is full would otherwise kill
        whoever writes to the mapping with SIGBUS. Raises `VolumeError` and leaves nothing behind.
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
            raise VolumeError(self._no_room(geometry.total, error)) from error
        return fd, path

    def _no_room(self, needed: int, error: OSError) -> str:
        room = os.statvfs(self.folder)
        free = room.f_bavail * room.f_frsize
        return (
            f"an arena of {-(-needed // _MIB)} MiB does not fit into {self.folder}, which has "
            f"{free // _MIB} MiB left ({error.strerror}). Give that volume more room (sizeLimit), "
            "or save with fewer slots"
        )

    def take_over(self, patience_s: float = PATIENCE_S) -> tuple[list[Taken], list[str]]:
        """Return the arenas of this job that hold something, oldest first; sweep all others.

        Also returns a sentence for each thing given up. Waits for who still has a file mapped.
        """
        taken, notes, until = list[Taken](), list[str](), time.monotonic() + patience_s
        for path in self._paths():
            try:
                found, said = self._take(path, until)
            except (OSError, ArenaError) as error:
                found, said = None, [f"{path} was removed: {error}"]
            notes += said
            if found is None:
                self.remove(path)
            else:
                taken.append(found)
        return sorted(taken, key=lambda one: _newest(one.arena)), notes

    def _take(self, path: str, until: float) -> tuple[Taken | None, list[str]]:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            _await_alone(fd, until)
            arena = Arena(fd)
            if arena.job != self._job:
                raise ArenaError(f"it is of job {arena.job!r}, and this is {self._job!r}")
            os.posix_fallocate(fd, 0, arena.geometry.total)  # a hole in it would be a SIGBUS
        except BaseException:
            os.close(fd)
            raise
        notes = [f"{path}: {note}" for note in _clear(arena)]
        if all(slot.state is SlotState.EMPTY for slot in arena.slots):
            arena.close()
            os.close(fd)
            return None, notes
        return Taken(arena=arena, fd=fd, path=path), notes

    def remove(self, path: str) -> None:
        """Take a file away; who has it mapped keeps its memory."""
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - as the rest of the paths here

    def close(self) -> None:
        """Remove everything, and let the directory go. A second time it does nothing."""
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
            raise VolumeError(f"{text} there that this user can write to") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(fd, 20).decode(errors="replace").strip()
            os.close(fd)
            raise VolumeError(
                f"{folder} is in use by another agent, process {holder or 'unknown'}: "
                "each agent needs a directory of its own"
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(fd).st_ino:  # noqa: PTH116
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                return fd
        os.close(fd)  # its holder removed it between our two calls


def _await_alone(fd: int, until: float) -> None:
    """Wait until no other process has the file open or mapped.

    The kernel grants a write lease only then. Where it knows no leases, the lock has to do.
    Raises `ArenaError` when somebody still has it at `until`.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise ArenaError("it is no file of this user")
    while not _is_alone(fd):
        if time.monotonic() > until:
            raise ArenaError("another process still has it mapped")
        time.sleep(_LOOK_S)


def _is_alone(fd: int) -> bool:
    fcntl.fcntl(fd, _F_SETSIG, signal.SIGURG)  # ignored by default, unlike a lease's own SIGIO
    try:
        fcntl.fcntl(fd, _F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, _F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno in _NO_LEASES
    return True


def _clear(arena: Arena) -> list[str]:
    """Empty the slots that cannot be trusted; return why, but for those that were being written."""
    notes = []
    for slot in arena.slots:
        if slot.state is SlotState.WRITING:
            slot.give_back(Move.ABANDON)
        elif slot.state is SlotState.VALID:
            fault = slot.fault(arena.table, arena.layout) or _mismatch(arena, slot)
            if fault:
                notes.append(f"slot {slot.index}, step {slot.version.step}, is emptied: {fault}")
                slot.give_back(Move.RELEASE)
    return notes


def _mismatch(arena: Arena, slot: Slot) -> str:
    """Compare a slot with its hashes; one that its agent had no time to hash gets them now."""
    try:
        hashes = hash_items(slot.image, arena.table.spans(tuple(slot.lengths)))
    except (ValueError, IndexError) as error:
        return str(error)
    if slot.words[SlotWord.HASHED] == slot.words[SlotWord.SEQUENCE]:
        return "" if hashes == tuple(slot.hashes) else "its bytes do not have their hashes"
    for index, number in enumerate(hashes):
        slot.hashes[index] = number
    slot.words[SlotWord.HASHED] = slot.words[SlotWord.SEQUENCE]
    return ""


def _newest(arena: Arena) -> tuple[int, int]:
    versions = [slot.version for slot in arena.slots if slot.state is SlotState.VALID]
    newest = max(versions)
    return newest.lineage, newest.step
