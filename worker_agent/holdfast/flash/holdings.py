"""The arenas that a keeper holds, by rank, and where in them a version lies.

Does not belong here: how they come and go (`keeper`), what a version could serve (`offering`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.flash.arena import Arena, Slot
from holdfast.flash.decide.slots import SlotState, Version


@dataclass(eq=False, slots=True)
class Held:
    """One arena of one rank."""

    rank: int
    fd: int
    arena: Arena
    path: str = ""
    """What its place calls it; empty: it is in memory that nobody else can find."""
    reading: list[int] = field(default_factory=list)
    """Slots that jobs read, once for each job."""


class Holdings:
    """Arenas by rank, the newest of each last."""

    def __init__(self) -> None:
        """Begin with none."""
        self._held: dict[int, list[Held]] = {}

    @property
    def ranks(self) -> list[int]:
        """Ranks that have an arena here."""
        return sorted(self._held)

    def versions(self, rank: int) -> set[Version]:
        """Return what is VALID in the rank's arenas."""
        return {
            slot.version
            for held in self._held.get(rank, ())
            for slot in held.arena.slots
            if slot.state is SlotState.VALID
        }

    @property
    def worlds(self) -> set[int]:
        """Return the sizes of the worlds that these arenas are of."""
        return {held.arena.table.world for arenas in self._held.values() for held in arenas}

    def find(self, rank: int, version: Version) -> tuple[Held, Slot] | None:
        """Return where a version of a rank lies VALID; the newest arena first."""
        for held in reversed(self._held.get(rank, [])):
            for slot in held.arena.slots:
                if slot.state is SlotState.VALID and slot.version == version:
                    return held, slot
        return None

    def places(self, version: Version) -> list[tuple[Held, Slot]]:
        """Return where each rank's part of a version lies."""
        found = (self.find(rank, version) for rank in self.ranks)
        return [place for place in found if place is not None]

    def common(self, ranks: Iterable[int]) -> frozenset[Version]:
        """Return what is VALID on all of these ranks."""
        sets = [self.versions(rank) for rank in ranks]
        return frozenset(set.intersection(*sets)) if sets else frozenset()
