"""Whether an arena fits into the memory that is left; asked before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Memory that is left, and who says so."""

    available: int
    """Bytes."""
    source: str
    """For the error: which limit it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomSettings:
    """What an arena must leave to others."""

    reserve: int = 256 * _MIB
    """Bytes that stay free. The trainer's own next allocation must not be what meets the limit.
    Default 256 MiB."""


def refusal(needed: int, room: Room, settings: RoomSettings) -> str | None:
    """Return why `needed` bytes may not be taken, with the remedy; None if they may."""
    if needed + settings.reserve <= room.available:
        return None
    missing = needed + settings.reserve - room.available
    return (
        f"an arena of {_mib(needed)} MiB does not fit: {_mib(room.available)} MiB are left by "
        f"{room.source}, of which {_mib(settings.reserve)} MiB stay free. Raise that limit by "
        f"{_mib(missing)} MiB, or save with fewer slots"
    )


def _mib(number: int) -> int:
    return -(-number // _MIB)
