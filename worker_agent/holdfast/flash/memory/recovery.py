"""Recovery of arenas left by a dead agent, from any `ArenaBackend`.

Belongs here: the rules by which the next agent takes arenas over, from any backend. Does not belong
here: the backends (`file_backend`, `fdstore_backend`), the assignment to ranks
(`server.arena_store`). No torch.

A dead agent's trainers may die a moment later than the agent. Recovery waits for an arena that
another process still maps, and in the end gives it up.
"""

from __future__ import annotations

import abc
import errno
import fcntl
import os
import signal
import stat
import time
from collections.abc import Callable, Iterable
from typing import Final

from holdfast.flash.memory.arena import (
    Arena,
    ArenaError,
    ArenaSlot,
    Geometry,
    RankArena,
    UnfinishedError,
)
from holdfast.flash.memory.slots import Move, SlotState, Version

PATIENCE_SECONDS: Final = 10.0
"""Seconds for a dead agent's trainers to die: their zygote sees a stale lease after 4 s."""
_LOOK_SECONDS: Final = 0.02
_F_SETSIG: Final = 10
_F_SETLEASE: Final = 1024
_NO_LEASES: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class BackendError(Exception):
    """A backend cannot be used, or has no room; the text names it and the remedy."""


class ArenaBackend(abc.ABC):
    """Store for one node's arenas that outlives the agent; one agent at a time has it open."""

    def __init__(self, job: str) -> None:
        """Take the job's uid: arenas of other jobs are not taken over."""
        self._job = job

    @property
    @abc.abstractmethod
    def is_empty(self) -> bool:
        """True if no agent left an arena here."""

    @abc.abstractmethod
    def make(self, table: bytes, geometry: Geometry) -> tuple[int, str]:
        """Return the descriptor and name of a new arena; raises `BackendError`.

        After an error nothing is left behind.
        """

    @abc.abstractmethod
    def remove(self, path: str) -> None:
        """Remove an arena; a process that maps it keeps its memory."""

    @abc.abstractmethod
    def close(self) -> None:
        """Remove everything, and release the backend. A second call does nothing."""

    @abc.abstractmethod
    def _found(self) -> Iterable[tuple[str, Callable[[], int]]]:
        """Return name and opener of each arena left; the caller owns what the opener returns."""

    @abc.abstractmethod
    def _secure(self, fd: int, geometry: Geometry) -> None:
        """Ensure that an arena's memory is there; raises OSError or `ArenaError`."""

    def take_over(self, patience_s: float = PATIENCE_SECONDS) -> tuple[list[RankArena], list[str]]:
        """Return this job's arenas that hold a checkpoint, oldest first; remove all others.

        Slots that cannot be trusted are emptied. Also returns a sentence for each arena given up,
        except those that were never finished. Waits up to `patience_s`, for all arenas together,
        for processes that still map one.
        """
        taken, notes, until = list[RankArena](), list[str](), time.monotonic() + patience_s
        for path, opened in self._found():
            try:
                one, said = self._take(path, opened(), until)
            except UnfinishedError:  # it never held a checkpoint
                one, said = None, []
            except (OSError, ArenaError) as error:
                one, said = None, [f"{path} was removed: {error}"]
            notes += said
            if one is None:
                self.remove(path)
            else:
                taken.append(one)
        return sorted(taken, key=_newest), notes

    def _take(self, path: str, fd: int, until: float) -> tuple[RankArena | None, list[str]]:
        try:
            _await_alone(fd, until)
            arena = Arena(fd)
            if arena.job != self._job:
                raise ArenaError(f"it is of job {arena.job!r}, and this is {self._job!r}")
            self._secure(fd, arena.geometry)
        except BaseException:
            os.close(fd)
            raise
        found, notes = RankArena(arena, fd, path), [f"{path}: {note}" for note in _clear(arena)]
        if not found.is_empty:
            return found, notes
        found.close()
        return None, notes


def _await_alone(fd: int, until: float) -> None:
    """Wait until no other process has the file open or mapped.

    The kernel grants a write lease only then. Without leases in the kernel there is no wait.
    Raises `ArenaError` if a process still has it at `until`.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise ArenaError("it is no file of this user")
    while not _is_alone(fd):
        if time.monotonic() > until:
            raise ArenaError("another process still has it mapped")
        time.sleep(_LOOK_SECONDS)


def _is_alone(fd: int) -> bool:
    fcntl.fcntl(fd, _F_SETSIG, signal.SIGURG)  # ignored by default, unlike a lease's own SIGIO
    try:
        fcntl.fcntl(fd, _F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, _F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno in _NO_LEASES
    return True


def _clear(arena: Arena) -> list[str]:
    """Empty the slots that cannot be trusted; return the reasons, except for unfinished writes."""
    notes = []
    for slot in arena.slots:
        if slot.state is SlotState.WRITING:
            slot.give_back(Move.ABANDON)
        elif slot.state is SlotState.VALID:
            fault = slot.fault or _mismatch(slot)
            if fault:
                notes.append(f"slot {slot.index}, step {slot.version.step}, is emptied: {fault}")
                slot.give_back(Move.RELEASE)
    return notes


def _mismatch(slot: ArenaSlot) -> str:
    """Compare a slot with its hashes; store the hashes if the dead agent had not yet."""
    if slot.is_hashed:
        return "" if slot.is_as_hashed else "its bytes do not have their hashes"
    slot.store_hashes(slot.hash_image(training=False))
    return ""


def _newest(one: RankArena) -> Version:
    return max(slot.version for slot in one.arena.slots if slot.state is SlotState.VALID)
