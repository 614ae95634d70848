"""State of local SGD under Megatron as `Shards`: boxes of the global tensors, in any layout.

Belongs here: where the elements of a part lie in the global tensors. Does not belong here: the
names and the rest of that state (`holdfast.local_sgd.shards`), weights and inner optimizer
(`holdfast.integrations.megatron.shards`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.trainer.leaves import Leaves
from holdfast.flash.trainer.reshard import Filling
from holdfast.integrations.megatron.boxes import fill, part
from holdfast.integrations.megatron.global_tensors import Piece, PieceBox
from holdfast.local_sgd.megatron.parts import MasterPart
from holdfast.local_sgd.shards import (
    ANCHOR,
    MERGE_ERROR,
    OUTER,
    Coming,
    LocalSGDShards,
    chunks_of,
)
from holdfast.local_sgd.sync.reducers import Lost
from holdfast.local_sgd.sync.units import Unit

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

    def _collect_anchors(
        self, leaves: Leaves, unit: Unit, module: MasterPart | None, *, stored: bool
    ) -> None:
        if module is None:
            return
        optimizer, (anchor,) = unit.anchors.optimizer, unit.anchors.values
        _add(leaves, ANCHOR, anchor, module, stored=stored)
        if optimizer is None:
            return
        leaves.counts.append((optimizer.state, len(optimizer.state)))
        for key, value in optimizer.state.get(anchor, {}).items():
            if not hasattr(value, "shape"):
                continue  # SGD's momentum of 0: None
            if value.shape == anchor.shape:
                _add(leaves, OUTER, value, module, key, stored=stored)
            else:
                path, zeros = (*OUTER, unit.name, key), (0,) * value.dim()
                first = stored and _is_first(module)
                leaves.add_box(path, value, value.shape, zeros, trained=False, stored=first)

    def _collect_lost(self, leaves: Leaves, lost: Lost, module: MasterPart | None) -> None:
        if module is not None:
            _add(leaves, self._own("error"), lost.sent, module)
            _add(leaves, MERGE_ERROR, lost.merged, module, begin=lost.begin)

    def _accept_unit(self, filling: Filling, unit: Unit, module: MasterPart | None) -> Coming:
        spare = Unit(unit.name, unit.tensors, unit.outer)
        if unit.has_anchors:
            spare.adopt(unit)
        else:
            spare.take_anchors()
        coming = Coming(unit, spare)
        if module is not None:
            (anchor,) = spare.anchors.values
            _fill(filling, ANCHOR, anchor, module)
            coming.states += self._accept_state(filling, anchor, module)
            coming.lost = self._lost(filling, module, anchor)
        return coming

    def _accept_state(
        self, filling: Filling, anchor: torch.Tensor, module: MasterPart
    ) -> Iterator[tuple[torch.Tensor, str, torch.Tensor]]:
        """Plan the copies into the outer optimizer's state of an anchor."""
        import torch

        keys, axes = {piece.key for piece in module.pieces}, len(module.pieces[0].shape)
        for (owner, key), stored in filling.below(OUTER).items():
            form = filling.form(stored)
            if form is None or owner not in {*keys, module.name}:
                continue
            dtype, shape = getattr(torch, form[0]), form[1]
            if len(shape) == axes and owner in keys:
                value = torch.zeros_like(anchor, dtype=dtype)
                _fill(filling, OUTER, value, module, key)
            else:
                value = torch.zeros(shape, dtype=dtype)
                filling.fill_box(stored, value, shape, (0,) * len(shape))
            yield anchor, key, value

    def _lost(self, filling: Filling, module: MasterPart, anchor: torch.Tensor) -> Lost | None:
        """Plan what the codec lost: this replica's, and of the chunk that this rank merges now."""
        import torch

        keys = [".".join((*MERGE_ERROR, piece.key)) for piece in module.pieces]
        form = next((form for name in keys if (form := filling.form(name))), None)
        if form is None or not self._local.config.error_feedback:
            return None
        begin, end = self._chunks()[module.name]
        options = {"dtype": getattr(torch, form[0]), "device": module.values().device}
        sent = torch.zeros(anchor.numel(), **options)
        lost = Lost(sent, begin, torch.zeros(end - begin, **options))
        if filling.form(".".join(map(str, self._own("error", module.pieces[0].key)))) is not None:
            _fill(filling, self._own("error"), sent, module)
        _fill(filling, MERGE_ERROR, lost.merged, module, begin=begin)
        return lost

    def _chunks(self) -> Mapping[str, tuple[int, int]]:
        """Return this rank's chunk of each part, as `sync.reducers` cuts a batch of all."""
        sizes = {
            unit.name: 0 if module is None else module.end - module.begin
            for unit, module in self._units()
        }
        found = chunks_of(list(sizes.values()), self._number, self._count)
        return dict(zip(sizes, found, strict=True))


def _boxes(
    values: torch.Tensor, one: MasterPart, begin: int
) -> Iterator[tuple[Piece, PieceBox, torch.Tensor]]:
    """Yield the boxes of a part's flat elements from `begin` on, each with its view."""
    first = one.begin + begin
    for piece in one.pieces:
        for box in piece.boxes(first, first + values.numel()):
            yield piece, box, part(values.view(-1), box, first)


def _add(
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
    filling: Filling, path: Path, values: torch.Tensor, one: MasterPart, *keys: str, begin: int = 0
) -> None:
    for piece, box, view in _boxes(values, one, begin):
        fill(filling, (*map(str, path), piece.key, *keys), view, piece, box)


def _is_first(one: MasterPart) -> bool:
    """Return True if the first element of the whole parameter is in a part, and not as a copy."""
    piece = one.pieces[0]
    at_begin = not any(piece.offsets[len(piece.layer) :]) and one.begin == 0
    return at_begin and one.end > 0 and not piece.copy
