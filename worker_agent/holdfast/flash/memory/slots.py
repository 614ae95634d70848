"""Ownership of an arena's slots, and its transitions.

A trainer owns a slot while it is EMPTY or WRITING, the agent while it is VALID. Only its owner
writes to a slot, so neither side needs a lock. Belongs here too: `Version`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from holdfast_wire.messages import CheckpointVersion


class SlotState(enum.IntEnum):
    """State of a slot; the number stands in its header."""

    EMPTY = 0
    WRITING = 1
    VALID = 2


class Party(enum.Enum):
    """The two sides of an arena."""

    TRAINER = "trainer"
    AGENT = "agent"


class Move(enum.Enum):
    """Event that changes a slot's state."""

    BEGIN = "begin"
    COMMIT = "commit"
    GIVE_UP = "give up"
    """The trainer breaks off its write."""
    RELEASE = "release"
    ABANDON = "abandon"
    """The agent empties a slot that a dead trainer was writing."""


_TABLE: Final[Mapping[tuple[SlotState, Move], tuple[Party, SlotState]]] = MappingProxyType(
    {
        (SlotState.EMPTY, Move.BEGIN): (Party.TRAINER, SlotState.WRITING),
        (SlotState.WRITING, Move.COMMIT): (Party.TRAINER, SlotState.VALID),
        (SlotState.WRITING, Move.GIVE_UP): (Party.TRAINER, SlotState.EMPTY),
        (SlotState.VALID, Move.RELEASE): (Party.AGENT, SlotState.EMPTY),
        (SlotState.WRITING, Move.ABANDON): (Party.AGENT, SlotState.EMPTY),
    }
)


class SlotError(Exception):
    """A side made a move that the slot's state does not allow."""


def after(state: SlotState, move: Move, by: Party) -> SlotState:
    """Return the state that `move` leads to.

    Raises `SlotError` if the table has no such move, or the move is the other side's.
    """
    entry = _TABLE.get((state, move))
    if entry is None or entry[0] is not by:
        raise SlotError(f"{by.value} may not {move.value} a slot that is {state.name}")
    return entry[1]


Version: TypeAlias = CheckpointVersion
"""Version of a checkpoint: the lineage that trained it, then the step. Later ones are greater.

A step alone is not enough: after a restore from step 10 there may be two different steps 12.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """One slot as a reader sees it."""

    index: int
    state: SlotState
    version: Version
    """Version of the content; meaningless unless VALID."""


def choose(slots: Iterable[SlotView]) -> int | None:
    """Return the slot that a save goes to: the first EMPTY one; None: there is none."""
    return next((slot.index for slot in slots if slot.state is SlotState.EMPTY), None)


def passed_over(
    held: Mapping[int, AbstractSet[Version]], *, complete: Version | None
) -> frozenset[Version]:
    """Return the versions that can never be VALID on all ranks: one rank holds a newer one instead.

    Each rank saves in order, and skips a step if it finds no free slot. Two ranks that skipped
    different steps would otherwise keep slots full of versions that the other will never have.

    held: VALID versions, by rank. complete: this and older versions are left to `releasable`.
    """
    newest = [(max(versions), versions) for versions in held.values() if versions]
    known = frozenset().union(*(versions for _, versions in newest))
    return frozenset(
        version
        for version in known
        if (complete is None or version > complete)
        and any(version < latest and version not in versions for latest, versions in newest)
    )


def releasable(
    slots: Iterable[SlotView],
    *,
    complete: Version | None,
    read: frozenset[int],
    hopeless: AbstractSet[Version] = frozenset(),
) -> tuple[int, ...]:
    """Return the slots that the agent may give back to the trainer.

    complete: the newest version that is VALID on every rank; None while there is none.
    read: slots with a reader (a write to storage, a peer, a restore).
    hopeless: the result of `passed_over`.

    Only versions older than `complete` go besides. So each rank keeps one version that all ranks
    have, and the slot that a world was restored from stays until a newer version is complete.
    """
    return tuple(
        slot.index
        for slot in slots
        if slot.state is SlotState.VALID
        and slot.index not in read
        and (slot.version in hopeless or (complete is not None and slot.version < complete))
    )


def outdated(slots: Iterable[SlotView], *, resume: Version | None) -> tuple[int, ...]:
    """Return the slots to empty before a world resumes from `resume` (None: from storage, or new).

    A world that is no more trained the versions newer than that: if kept, one could later pass for
    a step of the new world.
    """
    return tuple(
        slot.index
        for slot in slots
        if slot.state is SlotState.WRITING
        or (slot.state is SlotState.VALID and (resume is None or slot.version > resume))
    )
