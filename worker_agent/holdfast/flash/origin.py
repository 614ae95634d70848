"""Decides what a world starts from: memory, else storage, else nothing; the same for all ranks."""

from __future__ import annotations

from holdfast.flash.decide.slots import Version
from holdfast.flash.disk import Disk
from holdfast.flash.keeper import Keeper
from holdfast.flash.link import Origin
from holdfast.flash.reading import newest


def choose_origin(keeper: Keeper, disk: Disk, root: str) -> Origin:
    """Return the newest version that verifies, and empty the slots of what is newer.

    Call it when no trainer of an older world is left, and nothing is being written.
    """
    notes: list[str] = []
    memory = _in_memory(keeper, notes)
    found, damaged = newest(disk, root, memory) if root else (None, [])
    notes += damaged
    stored = found.manifest.version if found else None
    version = keeper.resume(memory=memory is not None and found is None)
    if version is not None:
        places = keeper.places(version)
        return Origin(
            lineage=version.lineage,
            step=version.step,
            ranks=tuple(held.rank for held, _ in places),
            slots=tuple(slot.index for _, slot in places),
            notes=tuple(notes),
        )
    if found is None or stored is None:
        return Origin(notes=tuple(notes))
    return Origin(lineage=stored.lineage, step=stored.step, path=found.path, notes=tuple(notes))


def _in_memory(keeper: Keeper, notes: list[str]) -> Version | None:
    """Return the newest version in memory that is undamaged; note the others."""
    while (version := keeper.offer.newest()) is not None:
        damage = keeper.offer.drop_damaged(version)
        if not damage:
            return version
        notes += damage
    return None
