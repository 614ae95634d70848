"""Room for an arena in the free memory, judged before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_KIB: Final = 1024
_MIB: Final = 2**20
RESERVE: Final = 256 * _MIB
"""Bytes that stay free: an arena must not cause the trainer's own next allocation to fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Free memory under the tightest limit."""

    available: int
    """Bytes."""
    source: str
    """Name of that limit, for the error."""


def refusal(needed: int, room: Room, reserve: int = RESERVE) -> str | None:
    """Return the reason not to take `needed` bytes, with the remedy; None if they may be taken."""
    missing = needed + reserve - room.available
    if missing <= 0:
        return None
    return (
        f"an arena of {_mib(needed)} MiB does not fit: {_mib(room.available)} MiB are left by "
        f"{room.source}, of which {_mib(reserve)} MiB stay free. Raise that limit by "
        f"{_mib(missing)} MiB, or save with fewer slots"
    )


def _mib(number: int) -> int:
    return -(-number // _MIB)


def memory_left(root: Path = Path("/")) -> Room:
    """Return the tightest of the machine's and the control groups' limits.

    Every group above the process counts: the limit may stand on the pod and not on the container.
    `memory.current` contains page cache that the kernel would give up under pressure. It counts as
    used, so the answer errs towards too little.
    """
    rooms = [_machine(root), *_groups(root)]
    return min(rooms, key=lambda room: room.available)


def _machine(root: Path) -> Room:
    for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return Room(available=int(rest.split()[0]) * _KIB, source="the machine (MemAvailable)")
    raise OSError(f"{root}proc/meminfo has no MemAvailable: Linux 3.14 or newer is needed")


def _groups(root: Path) -> list[Room]:
    try:
        text = (root / "proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        return []
    rooms = []
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            rooms += _chain(root / "sys/fs/cgroup", path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            rooms += _chain(root / "sys/fs/cgroup/memory", path, *names)
    return rooms


def _chain(mount: Path, path: str, limit: str, used: str) -> list[Room]:
    """Read each group from the process's own up to the mount; no limit where a file is missing."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    rooms = []
    for depth in range(len(parts), -1, -1):
        folder = mount.joinpath(*parts[:depth])
        try:
            most = (folder / limit).read_text(encoding="ascii").strip()
            now = int((folder / used).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if most != "max":
            source = f"{folder / limit} ({most}) minus what is in use"
            rooms.append(Room(available=max(0, int(most) - now), source=source))
    return rooms
