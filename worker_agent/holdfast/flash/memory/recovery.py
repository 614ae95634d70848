"""Recovery of arenas left by a dead agent: validation, and the `ArenaBackend` interface.

Belongs here: the rules by which the next agent takes arenas over, from any backend. Does not belong
here: the backends (`file_backend`, `fdstore_backend`), the assignment to ranks
(`server.arena_store`). No torch.

A dead agent's trainers may die a moment later than the agent. Recovery waits for an arena that
another process still maps, and in the end gives it up.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.flash.memory.arena import (
    Arena,
    ArenaError,
    ArenaSlot,
    Geometry,
    SlotWord,
    UnfinishedError,
)
from holdfast.flash.memory.hashes import hash_items
from holdfast.flash.memory.slots import Move, SlotState

PATIENCE_SECONDS: Final = 10.0
"""Seconds for a dead agent's trainers to die: their zygote sees a stale lease after 4 s."""
_LOOK_SECONDS: Final = 0.02
_F_SETSIG: Final = 10
_F_SETLEASE: Final = 1024
_NO_LEASES: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class BackendError(Exception):
    """A backend cannot be used, or has no room; the text names it and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """An arena that a dead agent left, without the slots that cannot be trusted."""

    arena: Arena
    fd: int
    path: str


class ArenaBackend(Protocol):
    """Store for one node's arenas that outlives the agent; one agent at a time has it open."""

    @property
    def is_empty(self) -> bool:
        """True if no agent left an arena here."""

    def make(self, table: bytes, geometry: Geometry) -> tuple[int, str]:
        """Return the descriptor and name of a new arena; raises `BackendError`."""

    def take_over(self, patience_s: float = PATIENCE_SECONDS) -> tuple[list[Taken], list[str]]:
        """Return the arenas taken over and the notes, as the module's `take_over` does."""

    def remove(self, path: str) -> None:
        """Remove an arena; a process that maps it keeps its memory."""

    def close(self) -> None:
        """Remove everything, and release the backend. A second call does nothing."""


def take_over(
    found: Iterable[tuple[str, Callable[[], int]]],
    job: str,
    patience_s: float,
    *,
    secure: Callable[[int, Geometry], None],
    remove: Callable[[str], None],
) -> tuple[list[Taken], list[str]]:
    """Return this job's arenas that hold a checkpoint, oldest first; remove all others.

    Also returns a sentence for each arena given up, except those that were never finished. Waits
    up to `patience_s`, for all arenas together, for processes that still map one.

    found: name and opener of each arena; the caller owns what the opener returns. job: the job's
    uid. secure: ensures that the memory of an arena is there; raises OSError or `ArenaError`.
    """
    taken, notes, until = list[Taken](), list[str](), time.monotonic() + patience_s
    for path, opened in found:
        try:
            one, said = _take(path, opened(), job, until, secure)
        except UnfinishedError:  # it never held a checkpoint
            one, said = None, []
        except (OSError, ArenaError) as error:
            one, said = None, [f"{path} was removed: {error}"]
        notes += said
        if one is None:
            remove(path)
        else:
            taken.append(one)
    return sorted(taken, key=lambda one: _newest(one.arena)), notes


def _take(
    path: str, fd: int, job: str, until: float, secure: Callable[[int, Geometry], None]
) -> tuple[Taken | None, list[str]]:
    try:
        _await_alone(fd, until)
        arena = Arena(fd)
        if arena.job != job:
            raise ArenaError(f"it is of job {arena.job!r}, and this is {job!r}")
        secure(fd, arena.geometry)
    except BaseException:
        os.close(fd)
        raise
    notes = [f"{path}: {note}" for note in _clear(arena)]
    if all(slot.state is SlotState.EMPTY for slot in arena.slots):
        arena.close()
        os.close(fd)
        return None, notes
    return Taken(arena=arena, fd=fd, path=path), notes


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
            fault = slot.fault(arena.table, arena.layout) or _mismatch(arena, slot)
            if fault:
                notes.append(f"slot {slot.index}, step {slot.version.step}, is emptied: {fault}")
                slot.give_back(Move.RELEASE)
    return notes


def _mismatch(arena: Arena, slot: ArenaSlot) -> str:
    """Compare a slot with its hashes; store the hashes if the dead agent had not yet."""
    try:
        spans = arena.table.spans(tuple(slot.lengths))
        hashes = hash_items(slot.image, spans, training=False)
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
