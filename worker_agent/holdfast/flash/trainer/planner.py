"""Plans one rank's image, without other ranks: its part of each tensor, and the layout.

Several ranks may hold the same tensor. Names and mesh coordinates alone decide which rank stores
which part, so a rank may plan again at any time without asking the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self
from zlib import crc32

from holdfast.environment import Environment
from holdfast.flash.memory import replica_check
from holdfast.flash.memory.arena import BYTES_ROOM
from holdfast.flash.memory.shard_table import Box, ByteItem, Needs, ShardTable, TensorItem
from holdfast.flash.trainer.holders import Holders, with_groups_of_all
from holdfast.flash.trainer.leaves import (
    Leaves,
    StateError,
    TensorLeaf,
    ValueLeaf,
    in_replica,
    is_common,
    is_own,
    of_rank,
)
from holdfast.flash.trainer.replica_sketches import Compared
from holdfast.flash.trainer.values import ALIGN, Frame, Frames

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
    copy: int
    """Index of this copy among the equal copies."""
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemSource:
    """Source of an item's bytes."""

    item: TensorItem
    leaf: TensorLeaf
    begin: int
    """First row; the whole local tensor if `rows` is None."""
    rows: int | None
    frame: Frame | None
    """Framing; None in the tail, which has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlan:
    """Plan of one rank's image."""

    table: ShardTable
    sources: tuple[ItemSource, ...]
    values: tuple[ValueLeaf, ...]
    compared: tuple[Compared, ...] = ()
    """Tensors that other ranks may have too; their sketches are the last item."""
    compared_values: tuple[ValueLeaf, ...] = ()


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
    return LocalPart(shape=box.shape, offsets=box.offsets, values=values, copy=0, copies=1)


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
        shape=shape,
        offsets=(0,) * len(shape),
        values=values,
        copy=place.rank,
        copies=place.world,
    )


def _plain(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return a tensor without its gradient's graph; raises `StateError` unless it is plain."""
    import torch

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


def _cuts(
    local: LocalPart, first_name: str, place: RankPosition, *, of_first: bool = False
) -> list[_Cut]:
    """Return the parts of a local tensor that this rank stores, those for its file first.

    of_first: the first of its holders stores it whole; else all of them share it, or one stores it.
    """
    values = local.values
    if not values.numel() and 0 not in local.shape:
        return []
    split = (
        not of_first
        and local.copies > 1
        and values.dim() > 0
        and values.shape[0] >= local.copies
        and values.nbytes >= SPLIT_BYTES * local.copies
    )
    if not split:
        owner = 0 if of_first else crc32(first_name.encode()) % local.copies
        kept = _kept(local, owner, place)
        return [] if kept is None else [_Cut(0, None, kept)]
    rows, cuts = values.shape[0], []
    for number in range(local.copies):
        kept = _kept(local, number, place)
        begin, end = rows * number // local.copies, rows * (number + 1) // local.copies
        if kept is not None:
            cuts.append(_Cut(begin, end - begin, kept))
    return cuts


def _kept(local: LocalPart, number: int, place: RankPosition) -> bool | None:
    """Return True if part `number` goes to the tail; None: this rank does not store it.

    All ranks of a node together keep every part that any rank of the world needs.
    """
    if number == local.copy:
        return False
    everywhere = local.copies == place.world
    return True if everywhere and number % place.local_world == place.local_rank else None


class Planner:
    """Plans images; keeps the framing of earlier plans."""

    def __init__(self, place: RankPosition) -> None:
        self._place = place
        self.holders = Holders()
        """Holders of each name, as far as they are known."""
        self._frames = Frames()
        self._first: dict[str, str] = {}
        """Each name of a tensor → its first name, which decides the rank that stores it."""

    def plan(self, leaves: Leaves, bytes_room: int = BYTES_ROOM) -> ImagePlan:
        """Return the plan of the image for these leaves; raises `StateError`."""
        tensors = [*leaves.tensors, *self._own(leaves.tensors)]
        drafts = self._drafts(tensors)
        every = with_groups_of_all(leaves.values, self.holders)
        kept = [(leaf, self._value_kept(leaf)) for leaf in every]
        values = [leaf for leaf, tail in kept if tail is False]
        tail_values = [leaf for leaf, tail in kept if tail is True]
        items, end = _lay_out([draft for draft in drafts if not draft.cut.tail], 0)
        begin = _align(end, ALIGN)
        tail_items, _ = _lay_out([d for d in drafts if d.cut.tail], begin + bytes_room)
        sources = (*items, *tail_items)
        # Also of values that others store: who has what nobody stores tells so at the commit.
        names: list[TensorLeaf | ValueLeaf] = [*tensors, *every]
        table = ShardTable(
            rank=self._place.rank,
            world=self._place.world,
            tensor_bytes=begin,
            tensors=tuple(source.item for source in sources),
            byte_items=(
                *(ByteItem(name=leaf.name) for leaf in values),
                *(ByteItem(name=leaf.name, tail=True) for leaf in tail_values),
                *self._sketches,
            ),
            paths={leaf.name: leaf.path for leaf in names},
            needs=self._needs(leaves.tensors),
            optimizers=leaves.optimizers,
            alike=not self.holders.ranks,
        )
        return ImagePlan(
            table=table,
            sources=sources,
            values=(*values, *tail_values),
            compared=self._compared(leaves.tensors),
            compared_values=tuple(leaf for leaf in every if self._sketches and is_common(leaf)),
        )

    @property
    def _sketches(self) -> tuple[ByteItem, ...]:
        return (ByteItem(name=replica_check.ITEM, tail=True),) if self._place.world > 1 else ()

    def _compared(self, leaves: Sequence[TensorLeaf]) -> tuple[Compared, ...]:
        """Return tensors and values that other ranks may have too, and should have equal.

        All of what is replicated, and all boxes: no rank knows of its own who has them too. Of
        shards that are no copies only some, for nobody else should have them: where the names of
        two stages meet, all of them do.
        """
        if not self._sketches:
            return ()
        found, shards = list[Compared](), list[Compared]()
        for leaf in leaves:
            local = self._locate(leaf)
            if not local.values.numel() or self._of_first(leaf) or not _is_compared(leaf):
                continue
            is_box, is_copy = leaf.box is not None, local.copies > 1
            is_shard = not is_box and not is_copy and local.values.shape != local.shape
            (shards if is_shard else found).append(Compared(leaf, local.offsets))
        some = sorted(shards, key=lambda one: crc32(one.leaf.name.encode()))[:_SHARDS_COMPARED]
        return (*found, *some)

    def _own(self, leaves: Sequence[TensorLeaf]) -> list[TensorLeaf]:
        """Return this rank's own copies of the buffers that each rank keeps for itself."""
        if self._place.world == 1:
            return []
        return [of_rank(leaf, self._place.rank) for leaf in leaves if is_own(leaf)]

    def _locate(self, leaf: TensorLeaf) -> LocalPart:
        """Return this process's part of a tensor; only the holders of a plain one have copies."""
        local = locate(leaf, leaf.name, self._place)
        if leaf.box is not None:
            return local
        if leaf.own:
            return replace(local, copy=0, copies=1)
        holders = self.holders.of(leaf.name, leaf.path)
        is_plain = getattr(leaf.tensor, "device_mesh", None) is None
        if holders is None or not is_plain or self._place.rank not in holders:
            return local
        return replace(local, copy=holders.index(self._place.rank), copies=len(holders))

    def _needs(self, leaves: Sequence[TensorLeaf]) -> Needs:
        found: dict[str, tuple[Box, ...]] = {}
        for leaf in leaves:
            local = self._locate(leaf)
            rows = [cut.rows for cut in self._cuts(leaf, local)]
            sizes = tuple(local.values.shape)
            whole = None in rows or (rows and sum(row or 0 for row in rows) == sizes[0])
            if local.values.numel() and not whole:
                found[leaf.name] = (*found.get(leaf.name, ()), (local.offsets, sizes))
        return found

    def _cuts(self, leaf: TensorLeaf, local: LocalPart) -> list[_Cut]:
        """Return this rank's parts of a tensor to store; if ranks may differ, rank 0 stores it."""
        if leaf.box is not None:
            return [_Cut(0, None, tail=False)] if leaf.stored and local.values.numel() else []
        shared = self._first[leaf.name]
        return _cuts(local, shared, self._place, of_first=self._of_first(leaf))

    def _of_first(self, leaf: TensorLeaf) -> bool:
        """Return True if ranks may differ in a tensor, so that rank 0's values are stored."""
        return not leaf.own and (leaf.synced or is_own(leaf))

    def _value_kept(self, leaf: ValueLeaf) -> bool | None:
        place = self._place
        # A module's own state may differ from rank to rank, like its buffers: rank 0's is stored.
        number = crc32(leaf.name.encode()) if is_common(leaf) else 0
        holders = self.holders.of(leaf.name, leaf.path)
        if holders is not None and not leaf.own and place.rank in holders:
            return False if holders[number % len(holders)] == place.rank else None
        owner = number % place.world
        if leaf.own or owner == place.rank:
            return False
        return True if owner % place.local_world == place.local_rank else None

    def _drafts(self, leaves: Sequence[TensorLeaf]) -> list[_Draft]:
        first: dict[tuple[Any, ...], str] = {}
        drafts = []
        for leaf in leaves:
            local = self._locate(leaf)
            values = local.values
            lazy = values.is_conj(), values.is_neg()  # the same bytes, but other values
            key = (values.data_ptr(), values.dtype, local.shape, values.stride(), lazy)
            if leaf.box is not None:
                shared = f"{leaf.name} {local.offsets}"  # a box has one name, and no other place
            else:
                shared = first.setdefault(key, leaf.name) if values.numel() else leaf.name
                self._first[leaf.name] = shared
            for cut in self._cuts(leaf, local):
                sizes = tuple(values.shape)
                if cut.rows is not None:
                    sizes = (cut.rows, *sizes[1:])
                frame = None if cut.tail else self._frames.frame(values.dtype, sizes)
                drafts.append(_Draft(leaf, local, cut, sizes, frame, shared))
        return drafts


def _is_compared(leaf: TensorLeaf) -> bool:
    """Return True if ranks with the same elements should have them equal.

    What else a framework keeps in boxes, such as the anchors of replicas that are not in the same
    round, may be of other moments.
    """
    own = in_replica(leaf.path)[0] in ("model", "optimizer")
    return leaf.box is None or (leaf.alike and own)


@dataclass(frozen=True, slots=True)
class _Draft:
    leaf: TensorLeaf
    local: LocalPart
    cut: _Cut
    sizes: tuple[int, ...]
    frame: Frame | None
    shared: str
    """First name of this tensor."""


def _lay_out(drafts: Sequence[_Draft], begin: int) -> tuple[list[ItemSource], int]:
    """Place the drafts one after another; a tensor with two names is stored once."""
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


def _source(draft: _Draft, at: int, length: int, size: int) -> ItemSource:
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
    return ItemSource(
        item=item, leaf=draft.leaf, begin=draft.cut.begin, rows=draft.cut.rows, frame=draft.frame
    )


def _align(number: int, to: int) -> int:
    return -(-number // to) * to
