"""A DeepSpeed engine as `Shards`: each rank's own partitions, without a gather.

Belongs here: the order of the parts, and the model under ZeRO as boxes: masters of trained
parameters, frozen ones, buffers. What fills the model from a checkpoint is `TorchShards`, which
takes boxes as it takes tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.trainer.leaves import Leaves, StateError, TensorLeaf
from holdfast.flash.trainer.reshard import Filling
from holdfast.flash.trainer.state_dict import collect_torch, parameter_names
from holdfast.flash.trainer.torch_shards import TorchShards, other_optimizer
from holdfast.integrations.deepspeed.engine_state import (
    accept_engine,
    collect_engine,
    finish_engine,
)
from holdfast.integrations.deepspeed.optimizer_state import (
    OF_KERNELS,
    Fresh,
    Names,
    Setting,
    accept_groups,
    accept_state,
    collect_groups,
    collect_state,
    install,
    kinds_of,
)
from holdfast.integrations.deepspeed.partitions import (
    Flat,
    FlatPiece,
    flats_of,
    is_partitioned,
    is_stored,
    piece_of,
    renew_weights,
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


def _trained(leaves: Leaves, flat: Flat, piece: FlatPiece, paths: Sequence[Path]) -> None:
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


class EngineShards:
    """An engine of `deepspeed.initialize`; see `Shards`.

    Names are torch's, and `model.<parameter>` is the fp32 master, so that any stage and world loads
    what another one saved, and so do DDP and FSDP2. Counters, LR scheduler and loss scale stand
    under `deepspeed`.
    """

    def __init__(self, engine: Any) -> None:
        """engine: its optimizer is ZeRO's of stage 1, 2 or 3, or torch's own (stage 0)."""
        self._engine = engine
        self._filling: Filling | None = None
        self._fresh: list[Fresh] = []
        self._settings: list[Setting] = []
        self._torch = self._of_torch()

    def collect(self, leaves: Leaves) -> None:
        """List partitions, frozen parameters, buffers, settings; see `Shards.collect`."""
        flats = flats_of(self._engine)
        if flats:
            names, inner = self._names(), self._engine.optimizer.optimizer
            collect_weights(leaves, self._engine.module, flats)
            collect_state(leaves, inner, flats, names)
            collect_groups(leaves, inner, flats, names)
        elif self._is_plain():
            self._of_torch().collect(leaves)
        else:
            collect_weights(leaves, self._engine.module, ())
        collect_engine(leaves, self._engine)

    def accept(self, filling: Filling) -> None:
        """Plan the copies into partitions and moments; see `Shards.accept`."""
        self._filling, self._fresh, self._settings = filling, [], []
        self._torch = self._of_torch()
        self._torch.accept(filling)
        if flats := flats_of(self._engine):
            self._accept_optimizer(filling, flats)
        accept_engine(filling, self._engine)
        filling.wrong[:] = dict.fromkeys(filling.wrong)  # one line for the boxes of a tensor

    def finish(self, *, partial: bool) -> None:
        """Install moments, counters and settings; renew the weights; see `Shards.finish`."""
        engine, filling = self._engine, self._filling
        assert filling is not None, "accept() comes first"  # noqa: S101 - the border's order
        self._torch.finish(partial=partial)
        if flats_of(engine):
            inner = engine.optimizer.optimizer
            filling.notes += install(inner, self._fresh, partial=partial)
            self._link_state(inner)
        for group, key, value in self._settings:
            group[key] = value
        renew_weights(engine.optimizer)
        finish_engine(filling, engine)
        self._filling, self._fresh, self._settings = None, [], []

    def _accept_optimizer(self, filling: Filling, flats: tuple[Flat, ...]) -> None:
        names, inner = self._names(), self._engine.optimizer.optimizer
        groups = inner.param_groups
        if other := other_optimizer(filling, ("optimizer",), kinds_of(inner), groups, OF_KERNELS):
            filling.wrong.append(f"optimizer: {other}")
            return
        trained = {id(one) for flat in flats for one in flat.parameters}
        frozen = {name for number, name in names.items() if number not in trained}
        self._fresh = accept_state(filling, inner, flats, names)
        self._settings = accept_groups(filling, inner, flats, names, frozen)

    def _link_state(self, inner: Any) -> None:
        """Have DeepSpeed's look-ups of single parameters find the new moments."""
        zero = self._engine.optimizer
        if hasattr(zero, "_hp_optimizer_states_linked"):
            zero._hp_optimizer_states_linked = False  # noqa: SLF001 - it links at the first step
            if inner.state:
                zero._lazy_init_hp_params_optimizer_state()  # noqa: SLF001

    def _names(self) -> Names:
        return parameter_names({"": self._engine.module}, "")

    def _is_plain(self) -> bool:
        from torch.optim import Optimizer

        return isinstance(self._engine.optimizer, Optimizer)

    def _of_torch(self) -> TorchShards:
        """Return the state for the model, and for torch's optimizer if the engine has no other."""
        optimizers = {"": self._engine.optimizer} if self._is_plain() else {}
        return TorchShards({"": self._engine.module}, optimizers)
