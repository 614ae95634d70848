"""Plans one rank's image, without other ranks: its part of each tensor, and the layout.

Several ranks may hold the same tensor. Names and mesh coordinates alone decide which rank stores
which part, so a rank may plan again at any time without asking the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Final, Self
from zlib import crc32

from holdfast.environment import Environment
from holdfast.flash.memory import replica_check
from holdfast.flash.memory.arena import BYTES_ROOM, SLOTS, Arena
from holdfast.flash.memory.shard_table import Box, ByteItem, Needs, ShardTable, TensorItem, encode
from holdfast.flash.server.protocol import Layout
from holdfast.flash.trainer.holders import Holders, with_groups_of_all
from holdfast.flash.trainer.leaves import (
    Leaves,
    StateError,
    TensorLeaf,
    ValueLeaf,
    in_replica,
    is_common,
    is_own,
    is_plain,
    of_rank,
)
from holdfast.flash.trainer.replica_sketches import Compared, room_for
from holdfast.flash.trainer.values import ALIGN, Frame, frame_of

if TYPE_CHECKING:
    import torch

SPLIT_BYTES: Final = 1 << 20
"""Bytes of each rank's share from which a tensor that all ranks hold is split into rows. Below
that, the framing of more records costs more than the balance gains."""


_SHARDS_COMPARED: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPosition:
    """Position of this rank in its world and on its node."""

    rank: int
    world: int
    local_rank: int
    local_world: int

    @classmethod
    def of(cls, environment: Environment) -> Self:
        """Return this process's position."""
        return cls(
            rank=environment.rank,
            world=environment.world_size,
            local_rank=environment.local_rank,
            local_world=environment.local_world_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPart:
    """Part of a tensor that this process has."""

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    values: torch.Tensor
    """Plain tensor; never a DTensor."""
    copy: int = 0
    """Index of this copy among the equal copies."""
    copies: int = 1


@dataclass(frozen=True, slots=True)
class ItemSource:
    """Source of an item's bytes."""

    item: TensorItem
    leaf: TensorLeaf
    begin: int
    """First row; the whole local tensor if `rows` is None."""
    rows: int | None
    frame: Frame | None
    """Framing; None in the tail, which has none."""
    shared: str
    """First name of this tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlan:
    """Plan of one rank's image."""

    table: ShardTable
    bytes_room: int
    """Bytes for the values that are no tensors, and for sketches."""
    sources: tuple[ItemSource, ...]
    values: tuple[ValueLeaf, ...]
    compared: tuple[Compared, ...] = ()
    """Tensors that other ranks may have too; their sketches are the last item."""
    compared_values: tuple[ValueLeaf, ...] = ()

    def layout(self) -> Layout:
        """Return the request for an arena."""
        body = encode(self.table).decode()
        return Layout(table=body, bytes_room=self.bytes_room, slots=SLOTS)


def fits(arena: Arena, layout: Layout) -> bool:
    """Return True if an arena was made for this layout, and has room for its values."""
    same = arena.body == layout.table.encode()
    return same and arena.geometry.bytes_room >= layout.bytes_room


def locate(leaf: TensorLeaf, name: str, place: RankPosition) -> LocalPart:
    """Return the part of a leaf's tensor in this process; raises `StateError`.

    name: the tensor's name in an error.
    """
    if leaf.box is None:
        return locate_tensor(leaf.tensor, name, place)
    values, box = _plain(leaf.tensor, name), leaf.box
    ends = tuple(at + size for at, size in zip(box.offsets, values.shape, strict=True))
    if len(box.shape) != values.dim() or any(
        end > size for end, size in zip(ends, box.shape, strict=True)
    ):
        raise StateError(
            f"{name}: a box of {tuple(values.shape)} at {box.offsets} is not in {box.shape}"
        )
    return LocalPart(shape=box.shape, offsets=box.offsets, values=values)


def parts_of_model(leaves: Leaves, place: RankPosition) -> Needs:
    """Return the boxes of the model's tensors that this process has; raises `StateError`.

    What an optimizer keeps is cut like its parameter, and need not be there before a start.
    """
    found: dict[str, tuple[Box, ...]] = {}
    for leaf in (leaf for leaf in leaves.tensors if leaf.path[0] == "model"):
        local = locate(leaf, leaf.name, place)
        if local.values.numel():
            box = local.offsets, tuple(local.values.shape)
            found[leaf.name] = (*found.get(leaf.name, ()), box)
    return found


def locate_tensor(tensor: torch.Tensor, name: str, place: RankPosition) -> LocalPart:
    """Return the part of a tensor in this process; raises `StateError` for an unknown kind."""
    from torch.distributed.tensor import DTensor

    if isinstance(tensor, DTensor):
        return _locate_shards(tensor, name)
    values = _plain(tensor, name)
    shape = tuple(values.shape)
    return LocalPart(
        shape=shape, offsets=(0,) * len(shape), values=values, copy=place.rank, copies=place.world
    )


def _plain(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return a tensor without its gradient's graph; raises `StateError` unless it is plain."""
    import torch

    if torch.nn.parameter.is_lazy(tensor):
        raise StateError(f"{name} has no values yet: run a forward pass before a save or a load")
    if not is_plain(tensor):
        raise StateError(
            f"{name}: a {type(tensor).__module__}.{type(tensor).__qualname__} of layout "
            f"{tensor.layout} cannot be saved byte by byte; put what it wraps into `extra`"
        )
    if tensor.device.type == "meta":
        raise StateError(f"{name} is on the meta device: it has no values yet")
    return tensor.detach()


def _locate_shards(tensor: Any, name: str) -> LocalPart:
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
    # A tensor without elements: FSDP2 keeps shards with a shape of their own.
    if tensor.numel() and tuple(values.shape) != tuple(sizes):
        raise StateError(f"{name}: {tuple(values.shape)} here, {tuple(sizes)} by its placements")
    copy, copies = 0, 1
    for placement, coordinate, size in zip(
        placements, mesh.get_coordinate(), mesh.shape, strict=True
    ):
        if isinstance(placement, Replicate):
            copy, copies = copy * size + coordinate, copies * size
    begin = tuple(offsets) if values.numel() else (0,) * len(tensor.shape)
    return LocalPart(
        shape=tuple(tensor.shape), offsets=begin, values=values, copy=copy, copies=copies
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    begin: int
    rows: int | None
    tail: bool


@dataclass(frozen=True, slots=True)
class _Located:
    """A tensor, its part in this process, and what of it this rank stores."""

    leaf: TensorLeaf
    local: LocalPart
    shared: str
    """First name of this tensor, which decides the rank that stores it."""
    cuts: list[_Cut]


class Planner:
    """Plans images of one rank."""

    def __init__(self, place: RankPosition) -> None:
        self._place = place
        self.holders = Holders()
        """Holders of each name, as far as they are known."""

    def plan(self, leaves: Leaves, values_room: int = BYTES_ROOM) -> ImagePlan:
        """Return the plan of the image for these leaves; raises `StateError`.

        values_room: bytes for the values that are no tensors; those for sketches are added.
        """
        is_alone = self._place.world == 1
        own = [] if is_alone else [leaf for leaf in leaves.tensors if is_own(leaf)]
        located = self._located(
            [*leaves.tensors, *(of_rank(leaf, self._place.rank) for leaf in own)]
        )
        room = values_room + (0 if is_alone else room_for(leaves))
        every = with_groups_of_all(leaves.values, self.holders)
        kept = [(leaf, self._value_kept(leaf)) for leaf in every]
        values = [leaf for leaf, tail in kept if tail is False]
        tail_values = [leaf for leaf, tail in kept if tail is True]
        drafts = [self._draft(one, cut) for one in located for cut in one.cuts]
        items, end = _lay_out([draft for draft in drafts if not draft.item.tail], 0)
        begin = _align(end, ALIGN)
        tail_items, _ = _lay_out([draft for draft in drafts if draft.item.tail], begin + room)
        sources = (*items, *tail_items)
        sketches = () if is_alone else (ByteItem(name=replica_check.ITEM, tail=True),)
        # Also of values that others store: who has what nobody stores tells so at the commit.
        names: list[TensorLeaf | ValueLeaf] = [*(one.leaf for one in located), *every]
        table = ShardTable(
            rank=self._place.rank,
            world=self._place.world,
            tensor_bytes=begin,
            tensors=tuple(source.item for source in sources),
            byte_items=(
                *(ByteItem(name=leaf.name) for leaf in values),
                *(ByteItem(name=leaf.name, tail=True) for leaf in tail_values),
                *sketches,
            ),
            paths={leaf.name: leaf.path for leaf in names},
            needs=_needs(located),
            optimizers=leaves.optimizers,
            alike=not self.holders.ranks,
        )
        return ImagePlan(
            table=table,
            bytes_room=room,
            sources=sources,
            values=(*values, *tail_values),
            compared=() if is_alone else _compared(located),
            compared_values=() if is_alone else tuple(leaf for leaf in every if is_common(leaf)),
        )

    def _located(self, leaves: Sequence[TensorLeaf]) -> list[_Located]:
        first: dict[tuple[Any, ...], str] = {}
        found = []
        for leaf in leaves:
            local = self._locate(leaf)
            values = local.values
            lazy = values.is_conj(), values.is_neg()  # the same bytes, but other values
            key = (values.data_ptr(), values.dtype, local.shape, values.stride(), lazy)
            if leaf.box is not None:
                shared = f"{leaf.name} {local.offsets}"  # a box has one name, and no other place
            else:
                shared = first.setdefault(key, leaf.name) if values.numel() else leaf.name
            found.append(_Located(leaf, local, shared, self._cuts(leaf, local, shared)))
        return found

    def _locate(self, leaf: TensorLeaf) -> LocalPart:
        """Return this process's part of a tensor; only the holders of a plain one have copies."""
        local = locate(leaf, leaf.name, self._place)
        if leaf.box is not None or getattr(leaf.tensor, "device_mesh", None) is not None:
            return local
        copy, copies = self._copy_of(leaf)
        return replace(local, copy=copy, copies=copies)

    def _copy_of(self, leaf: TensorLeaf | ValueLeaf) -> tuple[int, int]:
        """Return this rank's index among the holders of a tensor or value, and their number."""
        rank, holders = self._place.rank, self.holders.of(leaf.name, leaf.path)
        if leaf.own:
            return 0, 1
        if holders is None or rank not in holders:
            return rank, self._place.world
        return holders.index(rank), len(holders)

    def _cuts(self, leaf: TensorLeaf, local: LocalPart, shared: str) -> list[_Cut]:
        """Return the parts of a local tensor that this rank stores.

        The holders share a large tensor by rows, and one of them stores a small one. If ranks may
        differ, rank 0 stores it.
        """
        values, copies, of_first = local.values, local.copies, _is_of_first(leaf)
        if leaf.box is not None:
            return [_Cut(0, None, tail=False)] if leaf.stored and values.numel() else []
        if not values.numel() and 0 not in local.shape:
            return []
        parts: list[tuple[int, int, int | None]]
        if not of_first and _is_split(values, copies):
            begins = [values.shape[0] * number // copies for number in range(copies + 1)]
            pairs = enumerate(pairwise(begins))
            parts = [(number, begin, end - begin) for number, (begin, end) in pairs]
        else:
            parts = [(0 if of_first else crc32(shared.encode()) % copies, 0, None)]
        kept = [
            (begin, rows, self._kept(local.copy, copies, number)) for number, begin, rows in parts
        ]
        return [_Cut(begin, rows, tail) for begin, rows, tail in kept if tail is not None]

    def _kept(self, copy: int, copies: int, number: int) -> bool | None:
        """Return True if part `number` goes to the tail; None: this rank does not store it.

        All ranks of a node together keep every part that any rank of the world needs.
        """
        place = self._place
        if number == copy:
            return False
        everywhere = copies == place.world
        return True if everywhere and number % place.local_world == place.local_rank else None

    def _value_kept(self, leaf: ValueLeaf) -> bool | None:
        copy, copies = self._copy_of(leaf)
        # A module's own state may differ from rank to rank, like its buffers: rank 0's is stored.
        number = crc32(leaf.name.encode()) if is_common(leaf) else 0
        return self._kept(copy, copies, number % copies)

    def _draft(self, one: _Located, cut: _Cut) -> ItemSource:
        """Return the source of an item that has no place yet: as if it were at 0."""
        values, offsets, sizes = one.local.values, one.local.offsets, tuple(one.local.values.shape)
        if cut.rows is not None:
            offsets, sizes = (offsets[0] + cut.begin, *offsets[1:]), (cut.rows, *sizes[1:])
        frame = None if cut.tail else frame_of(values.dtype, sizes)
        size = prod(sizes) * values.element_size()
        item = TensorItem(
            name=one.leaf.name,
            dtype=str(values.dtype).removeprefix("torch."),
            shape=one.local.shape,
            offsets=offsets,
            sizes=sizes,
            at=0,
            length=frame.length if frame else size,
            payload=len(frame.before) if frame else 0,
            size=size,
            tail=cut.tail,
        )
        return ItemSource(item, one.leaf, cut.begin, cut.rows, frame, one.shared)


def _is_split(values: torch.Tensor, copies: int) -> bool:
    """Return True if a tensor is large enough that each of its holders stores some of its rows."""
    has_rows = copies > 1 and values.dim() > 0 and values.shape[0] >= copies
    return has_rows and values.nbytes >= SPLIT_BYTES * copies


def _is_of_first(leaf: TensorLeaf) -> bool:
    """Return True if ranks may differ in a tensor, so that rank 0's values are stored."""
    return not leaf.own and (leaf.synced or is_own(leaf))


def _needs(located: Iterable[_Located]) -> Needs:
    """Return the boxes that this rank has, and does not store as a whole."""
    found: dict[str, tuple[Box, ...]] = {}
    for one in located:
        rows, sizes = [cut.rows for cut in one.cuts], tuple(one.local.values.shape)
        whole = None in rows or (rows and sum(row or 0 for row in rows) == sizes[0])
        if not one.leaf.own and one.local.values.numel() and not whole:
            name = one.leaf.name
            found[name] = (*found.get(name, ()), (one.local.offsets, sizes))
    return found


def _compared(located: Iterable[_Located]) -> tuple[Compared, ...]:
    """Return tensors and values that other ranks may have too, and should have equal.

    All of what is replicated, and all boxes: no rank knows of its own who has them too. Of shards
    that are no copies only some, for nobody else should have them: where the names of two stages
    meet, all of them do.
    """
    found, shards = list[Compared](), list[Compared]()
    for one in located:
        leaf, local = one.leaf, one.local
        if leaf.own or not local.values.numel() or _is_of_first(leaf) or not _is_compared(leaf):
            continue
        is_whole = local.copies > 1 or local.values.shape == local.shape
        kind = found if leaf.box is not None or is_whole else shards
        kind.append(Compared(leaf, local.offsets))
    some = sorted(shards, key=lambda one: crc32(one.leaf.name.encode()))[:_SHARDS_COMPARED]
    return (*found, *some)


def _is_compared(leaf: TensorLeaf) -> bool:
    """Return True if ranks with the same elements should have them equal.

    What else a framework keeps in boxes, such as the anchors of replicas that are not in the same
    round, may be of other moments.
    """
    own = in_replica(leaf.path)[0] in ("model", "optimizer")
    return leaf.box is None or (leaf.alike and own)


def _lay_out(drafts: Iterable[ItemSource], begin: int) -> tuple[list[ItemSource], int]:
    """Place the drafts one after another; a tensor with two names is stored once."""
    placed: dict[tuple[str, int], int] = {}
    sources, end = [], begin
    for draft in drafts:
        key, item = (draft.shared, draft.begin), draft.item
        if key not in placed:
            placed[key] = _align(end, ALIGN)
            end = placed[key] + item.length
        at = placed[key]
        sources.append(replace(draft, item=replace(item, at=at, payload=at + item.payload)))
    return sources, end


def _align(number: int, to: int) -> int:
    return -(-number // to) * to
