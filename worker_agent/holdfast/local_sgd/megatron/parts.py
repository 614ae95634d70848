"""Parts of Megatron's parameters that a rank synchronises, in the optimizer's precision.

Belongs here: which elements of which parameter this rank answers for, their name on all ranks, and
where they lie in the global tensors of a checkpoint. Does not belong here: where Megatron keeps
masters (`holdfast.integrations.megatron.owned_ranges`), when they synchronise (`training`), the
rest of local SGD's state in a checkpoint (`holdfast.local_sgd.shards`), weights and inner optimizer
(`holdfast.integrations.megatron.shards`).

With the distributed optimizer a rank answers for the range that it updates anyway. Without it all
data parallel ranks of a replica update everything. Each then answers for an equal part of every
parameter, and the parts are put together again after a round: so no element crosses the slow link
twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.trainer.leaves import Leaves, StateError
from holdfast.flash.trainer.reshard import Filling
from holdfast.integrations.megatron import boxes
from holdfast.integrations.megatron.global_tensors import Piece, PieceBox, global_tensors
from holdfast.integrations.megatron.owned_ranges import OwnedRange, owned
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.shards import LocalSGDShards

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class MasterPart:
    """Elements of one parameter."""

    name: str
    """Of the whole parameter, alike on all ranks; a layer's number is in it."""
    owned: OwnedRange
    begin: int
    """First element, of the flattened parameter."""
    end: int
    pieces: tuple[Piece, ...]
    """Boxes of the global tensor, of the whole local parameter."""

    @property
    def is_copy(self) -> bool:
        """A tensor parallel rank before this one has the same values."""
        return any(piece.copy for piece in self.pieces)

    def values(self) -> torch.Tensor:
        """Return the elements, flat; a view of the master."""
        return self.owned.master[self.begin - self.owned.begin : self.end - self.owned.begin]


def parts_of(chunks: Sequence[Any], optimizer: Any, own: dist.ProcessGroup) -> list[MasterPart]:
    """Return this rank's parts, in the order of the optimizer's parameters.

    Args:
        chunks: The model.
        optimizer: Megatron's optimizer.
        own: Data parallel ranks of this replica.

    Raises:
        LocalSGDError: the optimizer keeps masters in a form that is not known.
    """
    try:
        tensors, found = global_tensors(chunks).tensors, owned(optimizer)
    except StateError as error:
        raise LocalSGDError(f"local SGD needs the masters as tensors: {error}") from error
    parts = []
    for one in found.ranges:
        pieces = tensors[id(one.parameter)].pieces
        begin, end = _share(one, own)
        parts.append(MasterPart(_name(pieces[0]), one, begin, end, pieces))
    return parts


def put_together(parts: Sequence[MasterPart], own: dist.ProcessGroup) -> None:
    """Give each rank of a replica the others' parts of parameters that all of them update.

    A parameter at a time: one more copy of the whole model would not fit everywhere.
    """
    import torch
    import torch.distributed as dist

    count = own.size()
    for part in parts:
        master = part.owned.master
        if part.owned.sharded or count == 1:
            continue
        wide = -(-master.numel() // count)
        sent = master.new_zeros(wide)
        sent[: part.end - part.begin] = part.values()
        whole = master.new_empty(wide * count)
        dist.all_gather_into_tensor(whole, sent, group=own)
        with torch.no_grad():
            master.copy_(whole[: master.numel()])


def _share(one: OwnedRange, own: dist.ProcessGroup) -> tuple[int, int]:
    """Return the elements that this rank answers for."""
    if one.sharded:
        return one.begin, one.end
    size = one.end - one.begin
    wide = -(-size // own.size())
    begin = min(own.rank() * wide, size)
    return begin, min(begin + wide, size)


def _name(piece: Piece) -> str:
    return ".".join([piece.key, *map(str, piece.layer)])


def by_name(parts: Sequence[MasterPart]) -> dict[str, MasterPart]:
    """Return parts by their names; raises LocalSGDError if two have one name."""
    found: dict[str, MasterPart] = {}
    for part in parts:
        if part.name in found:
            raise LocalSGDError(
                f"parameter {part.name}: two parameters have this name in sharded_state_dict(), so "
                "a replica could not tell them apart: give each module a prefix of its own"
            )
        found[part.name] = part
    return found


class MegatronRoundShards(LocalSGDShards):
    """State of a `MegatronLocalSGD` between rounds: boxes of the global tensors, in any layout."""

    def finish(self, *, partial: bool) -> None:
        """Take over what was filled; see `Shards.finish`."""
        starts_from_anchors = bool(self._coming) and not self._replica.found
        super().finish(partial=partial)
        if starts_from_anchors:
            self._local.after_change()

    def _outer_settings(self) -> dict[str, dict[str, Any]] | None:
        """Return them for all units: a rank has optimizers of some, which are alike."""
        own = [one for one in (super()._outer_settings() or {}).values() if one]
        return {unit.name: own[0] for unit in self._local.units} if own else None

    def _parts(self, module: MasterPart | None) -> Sequence[MasterPart]:
        return () if module is None else (module,)

    def _keys(self, one: MasterPart) -> list[str]:
        return [piece.key for piece in one.pieces]

    def _size(self, one: MasterPart) -> int:
        return one.end - one.begin

    def _is_first(self, one: MasterPart) -> bool:
        """Return True if the parameter's first element is in a part, and not as a copy."""
        piece = one.pieces[0]
        at_begin = not any(piece.offsets[len(piece.layer) :]) and one.begin == 0
        return at_begin and one.end > 0 and not piece.copy

    def _is_cut(self, one: MasterPart, shape: Sequence[int]) -> bool:
        return len(shape) == len(one.pieces[0].shape)  # a vocabulary may be padded otherwise

    def _add(
        self,
        leaves: Leaves,
        path: Path,
        values: torch.Tensor,
        one: MasterPart,
        *keys: str,
        begin: int = 0,
        stored: bool = True,
    ) -> None:
        for piece, box, view in _boxes(values, one, begin):
            whole = (*path, piece.key, *keys)
            own = stored and not piece.copy
            leaves.add_box(whole, view, piece.shape, box.offsets, trained=False, stored=own)

    def _fill(
        self,
        filling: Filling,
        path: Path,
        values: torch.Tensor,
        one: MasterPart,
        *keys: str,
        begin: int = 0,
    ) -> None:
        for piece, box, view in _boxes(values, one, begin):
            boxes.fill(filling, (*map(str, path), piece.key, *keys), view, piece, box)


def _boxes(
    values: torch.Tensor, one: MasterPart, begin: int
) -> Iterator[tuple[Piece, PieceBox, torch.Tensor]]:
    """Yield the boxes of a part's flat elements from `begin` on, each with its view."""
    first = one.begin + begin
    for piece in one.pieces:
        for box in piece.boxes(first, first + values.numel()):
            yield piece, box, boxes.part(values.view(-1), box, first)
