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


@dataclass(slots=True)
class Stored:
    """All images of a version, by name."""

    tensors: dict[str, list[tuple[TensorItem, Any]]] = field(default_factory=dict)
    values: dict[str, tuple[Any, int, int]] = field(default_factory=dict)
    paths: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    world: int = 0


def stored(images: Iterable[Image]) -> Stored:
    """Return what the images hold together."""
    found = Stored()
    for image in images:
        table = image.table
        found.world = table.world
        found.paths.update(table.paths)
        for item in table.tensors:
            if image.tail or not item.tail:
                found.tensors.setdefault(item.name, []).append((item, image.memory))
        spans = table.spans(image.lengths)[len(table.tensors) :]
        for value, span in zip(table.byte_items, spans, strict=True):
            if image.tail or not value.tail:
                found.values.setdefault(value.name, (image.memory, *span))
    return found
