"""The shard table: the content of one rank's image and its layout. A value, and its JSON.

A table is written once per layout. The image is the exact content of the rank's DCP file, followed
by a tail that only a restore from memory needs. No torch: dtypes are names.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

FORMAT: Final = 1
Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes inside a global tensor."""
Path = tuple[str | int, ...]
Needs = Mapping[str, tuple[Box, ...]]
"""Name of a tensor → the parts of it that a rank needs."""
BEGUN_ANEW: Final = frozenset({"rng"})
"""Per-rank values that begin anew in a world of another size."""


class TableError(Exception):
    """A shard table cannot be used: damaged, of a newer format, or not what it should describe."""


class NewerTableError(TableError):
    """A newer Holdfast wrote the table."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"format={found}: this Holdfast reads {known}; a newer one wrote it")
        self.found, self.known = found, known


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorItem:
    """One box of one tensor."""

    name: str
    dtype: str
    """Name of the dtype as in torch, without the prefix, such as "float32"."""
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    at: int
    """Offset of its record in the file, bytes; in the tail, offset of the payload itself."""
    length: int
    """Length of the record with its framing, bytes."""
    payload: int
    """Offset of its values in the image, bytes."""
    size: int
    """Size of its values, bytes."""
    tail: bool = False
    """True: the item is only in memory, not in the file."""

    @property
    def box(self) -> Box:
        """(offsets, sizes) of this part in the whole tensor."""
        return self.offsets, self.sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteItem:
    """One value that is no tensor; its length changes from save to save."""

    name: str
    tail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTable:
    """Layout of one rank's image: its tensors and byte items, and their places."""

    rank: int
    world: int
    tensor_bytes: int
    """Offset of the byte items, bytes."""
    tensors: tuple[TensorItem, ...]
    """Items of the file come first."""
    byte_items: tuple[ByteItem, ...] = ()
    """Items of the file come first."""
    paths: Mapping[str, Path] = field(default_factory=dict)
    """Name → keys in the nested state, as DCP's planner data has them."""
    needs: Needs = field(default_factory=dict)
    """Parts of a tensor that this rank has, where other ranks store some of them."""
    optimizers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Prefix of an optimizer's names → names of its classes, its own class first. Empty if an
    older release saved."""
    alike: bool = True
    """All ranks have the same names. Otherwise a subset of the ranks cannot serve every world."""

    @property
    def items(self) -> list[TensorItem | ByteItem]:
        """All items, tensors first."""
        return [*self.tensors, *self.byte_items]

    @property
    def count(self) -> int:
        """Number of items, tensors and others."""
        return len(self.tensors) + len(self.byte_items)

    def spans(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """Return (begin, length) of each item in the image; `lengths`: those of the byte items."""
        found = [(item.at, item.length) for item in self.tensors]
        at = self.tensor_bytes
        for length in lengths:
            found.append((at, length))
            at += length
        return found

    def file_bytes(self, lengths: Sequence[int]) -> int:
        """Return the length of the rank's file."""
        own = (
            length for item, length in zip(self.byte_items, lengths, strict=True) if not item.tail
        )
        return self.tensor_bytes + sum(own)


def encode(table: ShardTable) -> bytes:
    """Return the table as JSON."""
    tensors = [
        [t.name, t.dtype, t.shape, t.offsets, t.sizes, t.at, t.length, t.payload, t.size, t.tail]
        for t in table.tensors
    ]
    fields = {
        "format": FORMAT,
        "rank": table.rank,
        "world": table.world,
        "tensor_bytes": table.tensor_bytes,
        "tensors": tensors,
        "byte_items": [[item.name, item.tail] for item in table.byte_items],
        "paths": {name: list(path) for name, path in table.paths.items()},
    }
    if table.needs:
        fields["needs"] = {name: list(map(list, boxes)) for name, boxes in table.needs.items()}
    if table.optimizers:
        fields["optimizers"] = {name: list(kinds) for name, kinds in table.optimizers.items()}
    if not table.alike:
        fields["alike"] = False
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()


def decode(body: bytes) -> ShardTable:
    """Return the table that `encode` made these bytes from; raises `TableError`."""
    try:
        return from_fields(json.loads(body))
    except ValueError as error:
        raise TableError(f"a shard table of {len(body)} bytes is no JSON") from error


def from_fields(fields: Any) -> ShardTable:
    """Return the table that these JSON values describe; raises `TableError`."""
    found = fields.get("format") if isinstance(fields, dict) else fields
    if isinstance(found, int) and found > FORMAT:
        raise NewerTableError(found, FORMAT)
    if not isinstance(fields, dict) or found != FORMAT:
        raise TableError(f"format={found!r}: this Holdfast reads {FORMAT}")
    try:
        return ShardTable(
            rank=int(fields["rank"]),
            world=int(fields["world"]),
            tensor_bytes=int(fields["tensor_bytes"]),
            tensors=tuple(_tensor(row) for row in fields["tensors"]),
            byte_items=tuple(ByteItem(name=n, tail=bool(t)) for n, t in fields["byte_items"]),
            paths={name: tuple(path) for name, path in fields["paths"].items()},
            needs=needs_of(fields.get("needs", {})),
            optimizers={
                name: tuple(map(str, kinds)) for name, kinds in fields.get("optimizers", {}).items()
            },
            alike=bool(fields.get("alike", True)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TableError(f"a shard table lacks or misstates a field: {error!r}") from error


def _tensor(row: Sequence[Any]) -> TensorItem:
    name, dtype, shape, offsets, sizes, at, length, payload, size, tail = row
    numbers = tuple(map(int, (at, length, payload, size)))
    boxes = [tuple(map(int, box)) for box in (shape, offsets, sizes)]
    if min(numbers + boxes[0] + boxes[1] + boxes[2]) < 0:
        raise ValueError(f"{name}: a negative number")
    return TensorItem(
        name=str(name), dtype=str(dtype), shape=boxes[0], offsets=boxes[1], sizes=boxes[2],
        at=numbers[0], length=numbers[1], payload=numbers[2], size=numbers[3], tail=bool(tail),
    )  # fmt: skip


def needs_of(fields: Mapping[str, Any]) -> Needs:
    """Return needs from their JSON; raises TypeError, ValueError or IndexError."""
    return {str(name): _boxes(rows) for name, rows in fields.items()}


def _boxes(rows: Sequence[Any]) -> tuple[Box, ...]:
    if rows and not (rows[0] and isinstance(rows[0][0], list)):
        return (_box(rows),)  # of an older release, which had one
    return tuple(map(_box, rows))


def _box(fields: Sequence[Any]) -> Box:
    offsets, sizes = fields
    return tuple(int(n) for n in offsets), tuple(int(n) for n in sizes)


def layout_id(body: bytes) -> int:
    """Return the number of this encoded table in a slot's header."""
    return int.from_bytes(blake2b(body, digest_size=8).digest(), "little")


def overlap(one: Box, other: Box) -> Box | None:
    """Return the common part of two boxes of one tensor; None if they share no element."""
    begins = tuple(max(a, b) for a, b in zip(one[0], other[0], strict=True))
    ends = tuple(min(a + n, b + m) for a, n, b, m in zip(*one, *other, strict=True))
    sizes = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
    if any(size <= 0 for size in sizes):
        return None
    return begins, sizes


def holes(tables: Iterable[ShardTable]) -> list[str]:
    """Return the faults of the tables' files together; empty if each tensor is tiled exactly.

    A checkpoint of tables that do not tile is incomplete and must never be chosen.
    """
    tables = list(tables)
    boxes: dict[str, set[Box]] = {}
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    wrong = []
    for item in (item for table in tables for item in table.tensors if not item.tail):
        kind = (item.dtype, item.shape)
        if shapes.setdefault(item.name, kind) != kind:
            wrong.append(f"{item.name}: {kind} on one rank, {shapes[item.name]} on another")
        boxes.setdefault(item.name, set()).add(item.box)
    for name, parts in boxes.items():
        whole, covered = math.prod(shapes[name][1]), sum(math.prod(sizes) for _, sizes in parts)
        if covered != whole:
            wrong.append(f"{name}: {covered} of {whole} elements are there")
        elif _overlapping(sorted(parts)):
            wrong.append(f"{name}: its parts overlap")
    return wrong + _stored_by_nobody(tables, boxes)


def _stored_by_nobody(tables: Sequence[ShardTable], stored: Iterable[str]) -> list[str]:
    """Return names that some ranks have and none of them stores: their names differ."""
    values = {value.name for table in tables for value in table.byte_items if not value.tail}
    there = values.union(stored)
    ranks: dict[str, list[int]] = {}
    for table in tables:
        for name in table.paths.keys() - there:
            ranks.setdefault(name, []).append(table.rank)
    return [
        f"{name} is on ranks {which} only, and none of them stores it: with a Checkpointer "
        "call load() before the first save, where ranks tell each other what they have, or have it "
        "on all ranks, as a DTensor, or under a name of each rank's own in per_rank"
        for name, which in sorted(ranks.items())
    ]


def lacking(tables: Iterable[ShardTable], asked: Iterable[Needs] = ()) -> list[str]:
    """Return the tensors of which a rank needs more than the images of all these ranks hold.

    Tails count: this is for a start from the memory of the ranks' own node.

    asked: What ranks of another layout need besides, as far as the stored shapes reach.
    """
    tables = list(tables)
    wanted = {
        (name, box)
        for needs in [*(table.needs for table in tables), *asked]
        for name, several in needs.items()
        for box in several
    }
    boxes, shapes = _stored(tables, {name for name, _ in wanted})
    return sorted(
        {name for name, box in wanted if not _is_held(box, boxes[name], shapes.get(name))}
    )


def _stored(
    tables: Iterable[ShardTable], names: Container[str] | None = None
) -> tuple[defaultdict[str, set[Box]], dict[str, tuple[int, ...]]]:
    """Return all boxes of each tensor, tails included, and its shape; names: None: of all."""
    boxes, shapes = defaultdict[str, set[Box]](set), dict[str, tuple[int, ...]]()
    for item in (item for table in tables for item in table.tensors):
        if names is None or item.name in names:
            boxes[item.name].add(item.box)
            shapes[item.name] = item.shape
    return boxes, shapes


def _is_held(box: Box, parts: set[Box], shape: tuple[int, ...] | None) -> bool:
    """Return True if parts of a tensor cover a box, as far as it lies in the tensor's shape."""
    if box in parts:
        return True
    if shape is None:
        return False
    if len(shape) != len(box[0]):
        return True  # it fits no part on any node: the rank names the difference
    common = overlap(box, ((0,) * len(shape), shape))
    return common is None or _covered(common, parts) == math.prod(common[1])


def whole(tables: Iterable[ShardTable]) -> bool:
    """Return True if the images of these tables, tails included, can serve every world.

    Some per-rank values may be lacking, because a new world begins them anew: the random
    generators (`BEGUN_ANEW`).
    """
    tables = list(tables)
    boxes, shapes = _stored(tables)
    there = {value.name for table in tables for value in table.byte_items}
    names = {name: path for table in tables for name, path in table.paths.items()}
    own = {str(path[1]) for path in names.values() if str(path[0]).startswith("rank_")}
    size = tables[0].world if tables else 0
    return (
        (len(tables) == size or (own <= BEGUN_ANEW and all(table.alike for table in tables)))
        and all(name in there or name in boxes for name in names)
        and all(
            _covered(((0,) * len(shapes[name]), shapes[name]), parts) == math.prod(shapes[name])
            for name, parts in boxes.items()
        )
    )


def _covered(box: Box, parts: Iterable[Box]) -> int:
    common = (overlap(box, part) for part in parts)
    return sum(math.prod(found[1]) for found in common if found is not None)


def _overlapping(parts: Sequence[Box]) -> bool:
    """Return True if two of the sorted boxes share an element; distant boxes are not compared."""
    for index, part in enumerate(parts):
        for other in parts[index + 1 :]:
            if part[0] and other[0][0] >= part[0][0] + part[1][0]:
                break
            if overlap(part, other):
                return True
    return False
