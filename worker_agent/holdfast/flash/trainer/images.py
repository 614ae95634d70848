"""Images of all ranks for a restore, and their index by name.

Belongs here: images in arenas behind descriptors, or in the files of a committed step. Does not
belong here: the use of the images (`restore`), the choice of the version (the server).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.flash.memory import replica_check
from holdfast.flash.memory.arena import Arena
from holdfast.flash.memory.shard_table import ShardTable, TensorItem
from holdfast.flash.server.protocol import RestoreStart
from holdfast.flash.storage.filesystem import PosixDisk
from holdfast.flash.storage.manifest import read_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One rank's image, mapped."""

    table: ShardTable
    lengths: tuple[int, ...]
    memory: Any
    """Buffer that torch may wrap."""
    tail: bool
    """True: the image has its tail."""
    near: bool = False
    """True: the image is in this node's own memory."""
    lent: bool = False
    """True: the image is of another node. Its values are here; items that were not fetched are
    zeros."""


def mapped(descriptors: tuple[int, ...]) -> dict[int, Arena]:
    """Map the arenas behind the descriptors, by inode, and close the descriptors."""
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

    lent: ranks with memory on another node. tails: also the parts that are not on storage.
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


def of_start(start: RestoreStart, arenas: Iterable[Arena]) -> list[Image]:
    """Return the images that a start names, whichever tier has them.

    arenas: The arenas of its descriptors. Slots come first: they are nearer than files.
    """
    # All nodes of a world start from the same bytes: the tails are only in memory.
    usable = arenas if start.slots else ()
    images = of_arenas(usable, start.slots, start.lent, tails=not start.path)
    return images + (of_files(start.path) if start.path else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBox:
    """Location of one box of a tensor."""

    item: TensorItem
    memory: Any
    near: bool
    """True: in this node's own memory, which goes before all other places."""
    lent: tuple[int, int] | None = None
    """(rank, index of the item) of an item that must be fetched before it is read."""


@dataclass(slots=True)
class Stored:
    """All images of a version, by name."""

    tensors: dict[str, list[StoredBox]] = field(default_factory=dict)
    values: dict[str, tuple[Any, int, int]] = field(default_factory=dict)
    paths: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    optimizers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Classes of each optimizer, as in the tables."""
    world: int = 0
    step: int = 0

    def value(self, name: str) -> bytes:
        """Return the bytes of a value that is no tensor."""
        memory, begin, length = self.values[name]
        return bytes(memoryview(memory)[begin : begin + length])


def stored(images: Iterable[Image], step: int = 0) -> Stored:
    """Return the index of a step's images; of equal boxes the first one counts."""
    found = Stored(step=step)
    for image in images:
        table = image.table
        found.world = table.world
        found.paths.update(table.paths)
        found.optimizers.update(table.optimizers)
        for index, item in enumerate(table.tensors):
            if image.tail or not item.tail:
                part = StoredBox(
                    item=item,
                    memory=image.memory,
                    near=image.near,
                    lent=(table.rank, index) if image.lent else None,
                )
                found.tensors.setdefault(item.name, []).append(part)
        spans = table.spans(image.lengths)[len(table.tensors) :]
        for value, span in zip(table.byte_items, spans, strict=True):
            if value.name != replica_check.ITEM and (image.tail or not value.tail):
                found.values.setdefault(value.name, (image.memory, *span))
    return found
