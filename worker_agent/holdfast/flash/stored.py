"""What the images of all ranks hold together, by name: what a restore looks things up in.

Does not belong here: where images come from (`images`), what is done with them (`restoring`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.flash.table import ShardTable, TensorItem


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One rank's image, mapped."""

    table: ShardTable
    lengths: tuple[int, ...]
    memory: Any
    """A buffer that torch may wrap."""
    tail: bool
    """It has the tail as well."""
    near: bool = False
    """In this node's own memory."""
    lent: bool = False
    """Of another node's memory: what is not fetched first is zeros; its values are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Where one box of a tensor is."""

    item: TensorItem
    memory: Any
    near: bool
    """In this node's own memory, which goes before all other places."""
    lent: tuple[int, int] | None = None
    """(rank, index of the item): it is to be fetched before it is read."""


@dataclass(slots=True)
class Stored:
    """All images of a version, by name."""

    tensors: dict[str, list[Part]] = field(default_factory=dict)
    values: dict[str, tuple[Any, int, int]] = field(default_factory=dict)
    paths: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    optimizers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The classes of each, as in the tables."""
    world: int = 0
    step: int = 0

    def value(self, name: str) -> bytes:
        """Return what stands for a value that is no tensor."""
        memory, begin, length = self.values[name]
        return bytes(memoryview(memory)[begin : begin + length])


def stored(images: Iterable[Image], step: int = 0) -> Stored:
    """Return what the images of a step hold together; of equal ones the first counts."""
    found = Stored(step=step)
    for image in images:
        table = image.table
        found.world = table.world
        found.paths.update(table.paths)
        found.optimizers.update(table.optimizers)
        for index, item in enumerate(table.tensors):
            if image.tail or not item.tail:
                part = Part(
                    item=item,
                    memory=image.memory,
                    near=image.near,
                    lent=(table.rank, index) if image.lent else None,
                )
                found.tensors.setdefault(item.name, []).append(part)
        spans = table.spans(image.lengths)[len(table.tensors) :]
        for value, span in zip(table.byte_items, spans, strict=True):
            if image.tail or not value.tail:
                found.values.setdefault(value.name, (image.memory, *span))
    return found
