"""State of local SGD under Megatron as `Shards`: boxes of the global tensors, in any layout.

Belongs here: where the elements of a part lie in the global tensors. Does not belong here: the
names and the rest of that state (`holdfast.local_sgd.shards`), weights and inner optimizer
(`holdfast.integrations.megatron.shards`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.trainer.leaves import Leaves
from holdfast.flash.trainer.reshard import Filling
from holdfast.integrations.megatron.boxes import fill, part
from holdfast.integrations.megatron.global_tensors import Piece, PieceBox
from holdfast.local_sgd.megatron.parts import MasterPart
from holdfast.local_sgd.shards import LocalSGDShards

if TYPE_CHECKING:
    import torch


class MegatronRoundShards(LocalSGDShards):
    """State of a `MegatronLocalSGD` between rounds."""

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
            fill(filling, (*map(str, path), piece.key, *keys), view, piece, box)


def _boxes(
    values: torch.Tensor, one: MasterPart, begin: int
) -> Iterator[tuple[Piece, PieceBox, torch.Tensor]]:
    """Yield the boxes of a part's flat elements from `begin` on, each with its view."""
    first = one.begin + begin
    for piece in one.pieces:
        for box in piece.boxes(first, first + values.numel()):
            yield piece, box, part(values.view(-1), box, first)
