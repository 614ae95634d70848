"""Decides that an arena fits into the free memory, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Free memory under the tightest limit."""

    available: int
    """Bytes."""
    source: str
    """Name of that limit, for the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomSettings:
    """Memory that an arena must leave to others."""

    reserve: int = 256 * _MIB
    """Bytes that stay free: an arena must not cause the trainer's own next allocation to fail.
    Default 256 MiB."""


def refusal(needed: int, room: Room, settings: RoomSettings) -> str | None:
    """Return the reason not to take `needed` bytes, with the remedy; None if they may be taken."""
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
