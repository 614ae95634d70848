"""A rank's model tensors as pieces of global, unsharded tensors: Megatron's own names and offsets.

Belongs here: what `sharded_state_dict()` says of each parameter and buffer. It calls no collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from holdfast.flash.trainer.flat_range import boxes_of_range
from holdfast.flash.trainer.leaves import StateError

if TYPE_CHECKING:
    import torch
    from torch import nn

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceBox:
    """A box of a global tensor, and its place in the flattened local tensor."""

    begin: int
    """First element in the flattened local tensor."""
    sizes: Shape
    offsets: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A contiguous part of a local tensor that is one box of a global tensor."""

    key: str
    """Name of the global tensor."""
    shape: Shape
    """Shape of the global tensor."""
    offsets: Shape
    """First element in the global tensor."""
    sizes: Shape
    """Sizes in the global tensor."""
    begin: int
    """First element in the flattened local tensor."""
    copy: bool
    """A rank of another tensor or pipeline parallel position has it too, and comes first."""
    first: bool
    """No rank that has it comes before this one."""
    padded: bool
    """The global shape may differ in another layout: a vocabulary is padded."""
    layer: Shape = ()
    """Place along the axes that the global tensor has before the local one's: number of a layer."""

    @property
    def end(self) -> int:
        """The element after the last one in the flattened local tensor."""
        return self.begin + prod(self.sizes)

    def boxes(self, begin: int, end: int) -> Iterator[PieceBox]:
        """Yield the boxes of the local tensor's elements [begin, end) in this piece, in order."""
        begin, end = max(begin, self.begin), min(end, self.end)
        if begin >= end:
            return  # the range is in other pieces
        at = begin
        for inner, sizes in boxes_of_range(self.sizes, begin - self.begin, end - self.begin):
            offsets = tuple(one + more for one, more in zip(self.offsets, inner, strict=True))
            yield PieceBox(begin=at, sizes=sizes, offsets=offsets)
            at += prod(sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTensor:
    """A parameter or buffer of the model."""

    tensor: torch.Tensor
    holder: Mapping[str, Any]
    """Mapping of the module that holds it."""
    name: str
    """Its key there."""
    pieces: tuple[Piece, ...]

    @property
    def is_buffer(self) -> bool:
        """True: ranks may have other values, such as the statistics of a normalization."""
        from torch import nn

        return not isinstance(self.tensor, nn.Parameter)

    def boxes(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[Piece, PieceBox]]:
        """Yield the boxes of the flattened tensor's elements [begin, end), each with its piece."""
        last = self.tensor.numel() if end is None else end
        return ((piece, box) for piece in self.pieces for box in piece.boxes(begin, last))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraState:
    """State of a module that is no tensor, such as the scales of FP8."""

    key: str
    module: nn.Module
    first: bool
    """No rank that has it comes before this one."""


@dataclass(frozen=True, slots=True)
class GlobalTensors:
    """All of a rank's model."""

    tensors: Mapping[int, ModelTensor]
    """Id of the tensor → the tensor."""
    extra: tuple[ExtraState, ...]


def unwrap(chunk: nn.Module) -> nn.Module:
    """Return the model inside Megatron's wrappers (DistributedDataParallel, Float16Module)."""
    from torch import nn

    while isinstance(inner := getattr(chunk, "module", None), nn.Module):
        chunk = inner
    return chunk


def global_tensors(chunks: Sequence[nn.Module]) -> GlobalTensors:
    """Return the model's tensors in global coordinates.

    Who comes first is told among the data parallel ranks of the chunk's wrapper, if it has any:
    those of one replica, where replicas differ. Raises `StateError` if a tensor is no box of a
    global one in memory.
    """
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    tensors, extra = dict[int, ModelTensor](), list[ExtraState]()
    for given in chunks:
        chunk: Any = unwrap(given)
        group = getattr(given, "dp_cp_group", None)
        among = {} if group is None else {"metadata": {"dp_cp_group": group}}
        holders = _holders(chunk)
        for path, entry in _entries(chunk.sharded_state_dict(**among)):
            if isinstance(entry, ShardedObject):
                extra += _extra(chunk, path, entry)
                continue
            holder, name = holders.get(id(entry.data)) or _refuse_unknown(path)
            tensors[id(entry.data)] = ModelTensor(
                tensor=entry.data, holder=holder, name=name, pieces=_pieces(entry)
            )
    return GlobalTensors(tensors, tuple(extra))


def _refuse_unknown(path: str) -> tuple[Mapping[str, Any], str]:
    raise StateError(
        f"{path} of sharded_state_dict() is no parameter or buffer of the model: return the tensor "
        "itself there, not a copy"
    )


def _entries(entries: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the entry of each sharded thing in nested containers."""
    from megatron.core.dist_checkpointing.mapping import ShardedBase

    if isinstance(entries, ShardedBase):
        yield path, entries
    elif isinstance(entries, dict):
        for key, entry in entries.items():
            yield from _entries(entry, f"{path}.{key}" if path else str(key))
    elif isinstance(entries, list | tuple):
        for number, entry in enumerate(entries):
            yield from _entries(entry, f"{path}.{number}")


def _holders(chunk: nn.Module) -> dict[int, tuple[Mapping[str, Any], str]]:
    found: dict[int, tuple[Mapping[str, Any], str]] = {}
    for module in chunk.modules():
        for held in (vars(module)["_parameters"], vars(module)["_buffers"]):
            for key, tensor in held.items():
                if tensor is not None:
                    found.setdefault(id(tensor), (held, key))
    return found


def _extra(chunk: nn.Module, path: str, entry: Any) -> list[ExtraState]:
    """Return a module's extra state; none for the empty ones that keep old files readable."""
    owner, _, last = path.rpartition(".")
    if last != "_extra_state":
        raise StateError(f"{path} is an object that cannot be found again in the model")
    module = chunk.get_submodule(owner)
    if module.get_extra_state() is None:
        return []
    return [ExtraState(key=entry.unique_key, module=module, first=not any(_replica(entry)))]


def _pieces(entry: Any) -> tuple[Piece, ...]:
    """Return a tensor's pieces: a gated linear unit's halves, say, are boxes of their own."""
    import torch
    from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory

    whole = entry.data
    if not whole.is_contiguous():
        raise StateError(f"{entry.key} is not contiguous, strides {whole.stride()}")
    if not isinstance(entry, ShardedTensorFactory):
        return (_piece(entry, 0),)
    with torch.no_grad():
        parts = [part for _, part in _entries(entry.build())]
    pieces, end = [], 0
    for part in sorted(parts, key=lambda one: int(one.data.data_ptr())):
        begin = (part.data.data_ptr() - whole.data_ptr()) // whole.element_size()
        if begin != end or not part.data.is_contiguous():
            raise StateError(
                f"{entry.key} is saved in pieces that are copies, or no contiguous parts of it: "
                "only pieces along its first dimension can be saved in place"
            )
        pieces.append(_piece(part, begin))
        end = pieces[-1].end
    return tuple(pieces)


def _piece(entry: Any, begin: int) -> Piece:
    replica = _replica(entry)
    axes = int(entry.prepend_axis_num)
    return Piece(
        key=entry.key,
        shape=tuple(entry.global_shape),
        offsets=tuple(entry.global_offset),
        sizes=(*(1,) * axes, *entry.local_shape),
        begin=begin,
        copy=any(replica[:-1]),
        first=not any(replica),
        padded=bool(entry.allow_shape_mismatch),
        layer=tuple(entry.global_offset[:axes]),
    )


def _replica(entry: Any) -> tuple[int, ...]:
    """Return the replica's number: of pipeline, tensor and data parallelism, in this order."""
    found = entry.replica_id
    return (0, 0, found) if isinstance(found, int) else tuple(found)
