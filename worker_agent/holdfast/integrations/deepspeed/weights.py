"""A model under ZeRO as boxes: the masters of trained parameters, frozen ones, buffers.

Belongs here: the list of all that has a name under `model`. What fills it from a checkpoint is
`TorchShards`, which takes boxes as it takes tensors. Does not belong here: the flat tensors
(`partitions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.trainer.leaves import Leaves, StateError, TensorLeaf
from holdfast.flash.trainer.state_dict import collect_torch
from holdfast.integrations.deepspeed.partitions import (
    Flat,
    Piece,
    is_partitioned,
    is_stored,
    piece_of,
    whole_shape,
)


def collect_weights(leaves: Leaves, module: Any, flats: Sequence[Flat]) -> None:
    """List masters in place of trained parameters, and the rest of the model as it is."""
    trained = {id(one) for flat in flats for one in flat.parameters}
    paths: dict[int, list[Path]] = {}
    found = Leaves()
    collect_torch(found, {"": module}, {})
    leaves.values += found.values
    leaves.counts += found.counts
    leaves.links += found.links
    for leaf in found.tensors:
        if id(leaf.tensor) in trained:
            paths.setdefault(id(leaf.tensor), []).append(leaf.path)
        elif is_partitioned(leaf.tensor):
            _frozen(leaves, leaf)
        else:
            leaves.tensors.append(leaf)
    for flat in flats:
        leaves.watch({0: flat.master}, 0)
        for piece in flat.pieces:
            _trained(leaves, flat, piece, paths[id(piece.parameter)])


def _trained(leaves: Leaves, flat: Flat, piece: Piece, paths: Sequence[Path]) -> None:
    """Add a master under each name of its parameter: tied weights have several."""
    stored = is_stored(piece.parameter)
    for values, offsets in piece.boxes(flat.master):
        for path in paths:
            leaves.add_box(path, values, piece.shape, offsets, stored=stored)


def _frozen(leaves: Leaves, leaf: TensorLeaf) -> None:
    """Add this rank's part of a parameter that stage 3 partitions and no optimizer changes."""
    import torch

    parameter = leaf.tensor
    part: torch.Tensor = parameter.ds_tensor  # type: ignore[attr-defined] # is_partitioned
    shape = whole_shape(parameter)
    if hasattr(part, "ds_quant_scale"):
        raise StateError(
            f"{leaf.name} is quantized to {part.dtype}, and its scale has no place in a "
            "checkpoint: set zero_quantized_nontrainable_weights to false"
        )
    if 0 in shape:  # a released one has lost its shape
        empty = torch.empty(shape, dtype=part.dtype)
        leaves.tensors.append(replace(leaf, holder={0: empty}, key=0, tensor=empty))
        return
    leaves.watch({0: part}, 0)
    if piece := piece_of(parameter):
        for values, offsets in piece.boxes(part):
            leaves.add_box(leaf.path, values, piece.shape, offsets, trained=False)
