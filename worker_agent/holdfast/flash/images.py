"""The images that a restore reads: arenas behind descriptors, or the files of a committed step.

What is done with them is `restoring`; which of them a world starts from, the keeper says.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from holdfast.flash.arena import Arena
from holdfast.flash.commit import read_manifest
from holdfast.flash.disk import PosixDisk
from holdfast.flash.stored import Image


def mapped(descriptors: tuple[int, ...]) -> dict[int, Arena]:
    """Map the arenas behind the descriptors, and close these; by inode."""
    arenas: dict[int, Arena] = {}
    try:
        for fd in descriptors:
            arena = arenas[os.fstat(fd).st_ino] = Arena(fd)
            arena.keep_from_children()
    finally:
        for fd in descriptors:
            os.close(fd)
    return arenas


def of_arenas(
    arenas: Iterable[Arena],
    slots: tuple[int, ...],
    lent: Collection[int] = (),
    *,
    tails: bool = True,
) -> list[Image]:
    """Return the images of a version in memory.

    lent: ranks whose memory is on another node. tails: also what is on no storage.
    """
    images = []
    for arena, index in zip(arenas, slots, strict=True):
        slot, away = arena.slots[index], arena.table.rank in lent
        images.append(
            Image(
                table=arena.table,
                lengths=tuple(slot.lengths),
                memory=slot.image,
                tail=tails,
                near=not away,
                lent=away,
            )
        )
    return images


def of_files(path: str) -> list[Image]:
    """Return the images of a committed step."""
    disk = PosixDisk()
    return [
        Image(
            table=shard.table,
            lengths=shard.lengths,
            memory=disk.view(f"{path}/{shard.file}"),
            tail=False,
        )
        for shard in read_manifest(disk, path).shards
    ]
