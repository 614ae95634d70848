"""What of a dead agent's arenas may be trusted, and what a place for arenas that outlive it offers.

Belongs here: the rules by which the next agent takes arenas over, wherever they were. Does not
belong here: where they lie (`volume`, `stash`), who gets them (`keeper`). No torch.

A dead agent's trainers may die a moment later than it did: an arena that another process still has
mapped is waited for, and given up in the end.
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

from holdfast.flash.arena import Arena, ArenaError, Geometry, Slot, UnfinishedError
from holdfast.flash.decide.slots import Move, SlotState
from holdfast.flash.header import SlotWord
from holdfast.flash.manifest import hash_items

PATIENCE_S: Final = 10.0
"""For a dead agent's trainers to die. Their zygote sees the lease run out after 4 s at most."""
_LOOK_S: Final = 0.02
_F_SETSIG: Final = 10
_F_SETLEASE: Final = 1024
_NO_LEASES: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class PlaceError(Exception):
    """The place cannot be used, or has no room; the text names it and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """An arena that a dead agent left, cleared of all that cannot be trusted."""

    arena: Arena
    fd: int
    path: str


class Place(Protocol):
    """Where arenas of one node lie so that they outlive their agent; one agent has it at a time."""

    @property
    def is_empty(self) -> bool:
        """Whether nobody left an arena here."""

    def make(self, table: bytes, geometry: Geometry) -> tuple[int, str]:
        """Return the descriptor of a new arena, and what `remove` wants; raises `PlaceError`."""

    def take_over(self, patience_s: float = PATIENCE_S) -> tuple[list[Taken], list[str]]:
        """Return what `take_over` of this module returns."""

    def remove(self, path: str) -> None:
        """Give an arena up; who has it mapped keeps its memory."""

    def close(self) -> None:
        """Give everything up, and let the place go. A second time it does nothing."""


def take_over(
    found: Iterable[tuple[str, Callable[[], int]]],
    job: str,
    patience_s: float,
    *,
    secure: Callable[[int, Geometry], None],
    remove: Callable[[str], None],
) -> tuple[list[Taken], list[str]]:
    """Return the arenas of this job that hold something, oldest first; remove all others.

    Also returns a sentence for each thing given up, but for arenas that were never finished. Waits
    for who still has one mapped.

    Args:
        found: name and opener of each; what the opener returns belongs to the caller.
        job: the job's uid.
        patience_s: how long to wait, for all together.
        secure: has the memory of an arena be there; raises OSError or `ArenaError`.
        remove: takes a name.
    """
    taken, notes, until = list[Taken](), list[str](), time.monotonic() + patience_s
    for path, opened in found:
        try:
            one, said = _take(path, opened(), job, until, secure)
        except UnfinishedError:  # nothing is lost with it
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

    The kernel grants a write lease only then. Where it knows no leases, nobody waits.
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
