"""Plans one rank's image, alone: which part of each tensor it holds, and where.

Who owns a part of what several ranks hold alike follows from names and mesh coordinates only. So
a rank may plan again without asking the others, whatever they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from holdfast.flash.arena import BYTES_ROOM
from holdfast.flash.frames import ALIGN, Frame, Frames
from holdfast.flash.state import Leaves, StateError, TensorLeaf, ValueLeaf
from holdfast.flash.table import Box, ByteItem, ShardTable, TensorItem

if TYPE_CHECKING:
    import torch

SPLIT_BYTES: Final = 1 << 20
"""A tensor that all ranks hold alike is cut into rows once each rank's share is this large: below,
the framing of more records costs more than the balance gains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this rank stands."""

    rank: int
    world: int
    local_rank: int
    local_world: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """What this process has of a tensor."""

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    values: torch.Tensor
    """Plain; never a DTensor."""
    copy: int
    """Which of the equal copies this is."""
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where an item's bytes come from."""

    item: TensorItem
    leaf: TensorLeaf
    begin: int
    """First row; with `rows` None the whole local tensor."""
    rows: int | None
    frame: Frame | None
    """None in the tail, which has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A rank's image."""

    table: ShardTable
    sources: tuple[Source, ...]
    values: tuple[ValueLeaf, ...]


def locate(tensor: torch.Tensor, name: str, place: Place) -> Local:
    """Return what this process holds of a tensor; raises `StateError` for an unknown kind."""
    import torch
    from torch.distributed.tensor import DTensor

    if isinstance(tensor, DTensor):
        return _locate_shards(tensor, name)
    if torch.nn.parameter.is_lazy(tensor):
        raise StateError(f"{name} has no values yet: run a forward pass before a save or a load")
    known = (torch.Tensor, torch.nn.Parameter)
    if type(tensor) not in known or tensor.layout is not torch.strided or tensor.is_quantized:
        raise StateError(
            f"{name}: a {type(tensor).__module__}.{type(tensor).__qualname__} of layout "
            f"{tensor.layout} cannot be saved byte by byte; put what it wraps into `extra`"
        )
    if tensor.device.type == "meta":
        raise StateError(f"{name} is on the meta device: it has no values yet")
    shape = tuple(tensor.shape)
    return Local(
        shape=shape,
        offsets=(0,) * len(shape),
        values=tensor.detach(),
        copy=place.rank,
        copies=place.world,
    )


def _locate_shards(tensor: Any, name: str) -> Local:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements
    if mesh.get_coordinate() is None:
        raise StateError(
            f"{name}: this rank is outside the mesh that has it: give each rank the modules of "
            "its own stage only"
        )
    if any(placement.is_partial() for placement in placements):
        raise StateError(f"{name}: a DTensor with placements {placements} is no value yet")
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    values = tensor._local_tensor.detach()  # noqa: SLF001 - to_local() would track gradients
    if tuple(values.shape) != tuple(sizes):
        raise StateError(f"{name}: {tuple(values.shape)} here, {tuple(sizes)} by its placements")
    copy, copies = 0, 1
    for placement, coordinate, size in zip(
        placements, mesh.get_coordinate(), mesh.shape, strict=True
    ):
        if isinstance(placement, Replicate):
            copy, copies = copy * size + coordinate, copies * size
    begin = tuple(offsets) if values.numel() else (0,) * len(tensor.shape)
    return Local(shape=tuple(tensor.shape), offsets=begin, values=values, copy=copy, copies=copies)


@dataclass(frozen=True, slots=True)
class _Cut:
    begin: int
    rows: int | None
    tail: bool


def _cuts(local: Local, first_name: str, place: Place) -> list[_Cut]:
    """Return the parts of a local tensor that this rank stores, its file's first."""
    values = local.values
    if not values.numel() and 0 not in local.shape:
        return []
    split = (
        local.copies > 1
        and values.dim() > 0
        and values.shape[0] >= local.copies
        and values.nbytes >= SPLIT_BYTES * local.copies
    )
    if not split:
        owner = crc32(first_name.encode()) % local.copies
        kept = _kept(local, owner, place)
        return [] if kept is None else [_Cut(0, None, kept)]
    rows, cuts = values.shape[0], []
    for number in range(local.copies):
        kept = _kept(local, number, place)
        begin, end = rows * number // local.copies, rows * (number + 1) // local.copies
        if kept is not None:
            cuts.append(_Cut(begin, end - begin, kept))
    return cuts


def _kept(local: Local, number: int, place: Place) -> bool | None:
    """Return whether part `number` goes to the tail; None: it is not this rank's at all.

    All ranks of a node together keep what every rank of the world has.
    """
    if number == local.copy:
        return False
    everywhere = local.copies == place.world
    return True if everywhere and number % place.local_world == place.local_rank else None


class Planner:
    """Plans images; knows the framing of what it has planned before."""

    def __init__(self, place: Place) -> None:
        """Take the rank's place."""
        self._place = place
        self._frames = Frames()
        self._first: dict[str, str] = {}
        """Of a tensor with several names the first one, which decides who stores it."""

    def plan(self, leaves: Leaves, bytes_room: int = BYTES_ROOM) -> Plan:
        """Return the image for these leaves; raises `StateError`."""
        drafts = self._drafts(leaves.tensors)
        kept = [(leaf, self._value_kept(leaf)) for leaf in leaves.values]
        values = [leaf for leaf, tail in kept if tail is False]
        tail_values = [leaf for leaf, tail in kept if tail is True]
        items, end = _lay_out([draft for draft in drafts if not draft.cut.tail], 0)
        begin = _align(end, ALIGN)
        tail_items, _ = _lay_out([d for d in drafts if d.cut.tail], begin + bytes_room)
        sources = (*items, *tail_items)
        names: list[TensorLeaf | ValueLeaf] = [*leaves.tensors, *values, *tail_values]
        table = ShardTable(
            rank=self._place.rank,
            world=self._place.world,
            tensor_bytes=begin,
            tensors=tuple(source.item for source in sources),
            byte_items=(
                *(ByteItem(name=leaf.name) for leaf in values),
                *(ByteItem(name=leaf.name, tail=True) for leaf in tail_values),
            ),
            paths={leaf.name: leaf.path for leaf in names},
            needs=self._needs(leaves.tensors),
            optimizers=leaves.optimizers,
        )
        return Plan(table=table, sources=sources, values=(*values, *tail_values))

    def _needs(self, leaves: Sequence[TensorLeaf]) -> dict[str, Box]:
        found: dict[str, Box] = {}
        for leaf in leaves:
            local = locate(leaf.tensor, leaf.name, self._place)
            rows = [cut.rows for cut in _cuts(local, self._first[leaf.name], self._place)]
            sizes = tuple(local.values.shape)
            whole = None in rows or (rows and sum(row or 0 for row in rows) == sizes[0])
            if local.values.numel() and not whole:
                found[leaf.name] = (local.offsets, sizes)
        return found

    def _value_kept(self, leaf: ValueLeaf) -> bool | None:
        place = self._place
        owner = crc32(leaf.name.encode()) % place.world
        if leaf.own or owner == place.rank:
            return False
        return True if owner % place.local_world == place.local_rank else None

    def _drafts(self, leaves: Sequence[TensorLeaf]) -> list[_Draft]:
        first: dict[tuple[Any, ...], str] = {}
        drafts = []
        for leaf in leaves:
            local = locate(leaf.tensor, leaf.name, self._place)
            values = local.values
            lazy = values.is_conj(), values.is_neg()  # other values of the same bytes
            key = (values.data_ptr(), values.dtype, local.shape, values.stride(), lazy)
            shared = first.setdefault(key, leaf.name) if values.numel() else leaf.name
            self._first[leaf.name] = shared
            for cut in _cuts(local, shared, self._place):
                sizes = tuple(values.shape)
                if cut.rows is not None:
                    sizes = (cut.rows, *sizes[1:])
                frame = None if cut.tail else self._frames.frame(values.dtype, sizes)
                drafts.append(_Draft(leaf, local, cut, sizes, frame, shared))
        return drafts


@dataclass(frozen=True, slots=True)
class _Draft:
    leaf: TensorLeaf
    local: Local
    cut: _Cut
    sizes: tuple[int, ...]
    frame: Frame | None
    shared: str
    """The first of the names that this tensor has."""


def _lay_out(drafts: Sequence[_Draft], begin: int) -> tuple[list[Source], int]:
    """Place the drafts one after another; a tensor with two names lies there once."""
    placed: dict[tuple[str, int], int] = {}
    sources, end = [], begin
    for draft in drafts:
        key = (draft.shared, draft.cut.begin)
        at = placed.get(key)
        size = draft.local.values.element_size()
        for number in draft.sizes:
            size *= number
        length = draft.frame.length if draft.frame else size
        if at is None:
            at = placed[key] = _align(end, ALIGN)
            end = at + length
        sources.append(_source(draft, at, length, size))
    return sources, end


def _source(draft: _Draft, at: int, length: int, size: int) -> Source:
    offsets = draft.local.offsets
    if draft.cut.begin:
        offsets = (offsets[0] + draft.cut.begin, *offsets[1:])
    item = TensorItem(
        name=draft.leaf.name,
        dtype=str(draft.local.values.dtype).removeprefix("torch."),
        shape=draft.local.shape,
        offsets=offsets,
        sizes=draft.sizes,
        at=at,
        length=length,
        payload=at + (len(draft.frame.before) if draft.frame else 0),
        size=size,
        tail=draft.cut.tail,
    )
    return Source(
        item=item, leaf=draft.leaf, begin=draft.cut.begin, rows=draft.cut.rows, frame=draft.frame
    )


def _align(number: int, to: int) -> int:
    return -(-number // to) * to
