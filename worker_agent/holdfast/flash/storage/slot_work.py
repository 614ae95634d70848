"""Work on one VALID slot: its arena, version and target. A value.

Does not belong here: writing it (`writer`), the request for it (`server.arena_store`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.flash.memory.arena import Arena, ArenaSlot
from holdfast.flash.memory.slots import Version
from holdfast_wire.messages import Tier


@dataclass(eq=False, slots=True)
class RankArena:
    """One arena of one rank."""

    rank: int
    fd: int
    arena: Arena
    path: str = ""
    """Name of the arena in its backend; empty: in memory that no other process can find."""
    reading: list[int] = field(default_factory=list)
    """Indices of slots with a reader, once per reader."""
    proven: dict[int, int] = field(default_factory=dict)
    """Slot → SEQUENCE of a content that had its hashes a moment ago; for one verification."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWork:
    """One VALID slot to be written or read; its slot must not be given back meanwhile."""

    held: RankArena
    slot: ArenaSlot
    version: Version
    tier: Tier
    """Tier that the slot is read for; memory: it stays where it is."""
    final: str = ""
    """Path for the checkpoint; empty: the root's directory of that step."""
