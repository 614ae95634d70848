"""Megatron-LM's model and optimizer as `Shards`: each rank's own boxes of the global tensors.

Belongs here: the lists for a save, and what a start fills.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.flash.trainer.leaves import Leaves, Stateful
from holdfast.flash.trainer.reshard import Filling
from holdfast.flash.trainer.shards import Shards
from holdfast.integrations.megatron import group_settings
from holdfast.integrations.megatron.boxes import (
    STATE,
    ModelView,
    add_range,
    allocated,
    fill,
    moments,
    part,
    watch,
)
from holdfast.integrations.megatron.global_tensors import ModelTensor, global_tensors
from holdfast.integrations.megatron.group_settings import GroupSettings, Steps
from holdfast.integrations.megatron.owned_ranges import (
    OwnedRange,
    end_gathers,
    optimizers_of,
    owned,
    write_weights,
)
from holdfast.integrations.megatron.random_states import RandomStates

if TYPE_CHECKING:
    import torch
    from torch import nn


_EXTRA: Final = ("megatron", "extra_state")
SCALERS: Final = ("megatron", "grad_scaler")
OBJECTS: Final = ("megatron", "objects")
_CONSTANTS: Final = ("megatron", "constants")


class MegatronShards:
    """Megatron-core's model chunks and optimizer; see `Shards`.

    ```python
    flash = holdfast.Checkpointer("/shared/run", shards=MegatronShards(model, optimizer))
    ```

    Names follow the global keys of `sharded_state_dict()`. `model.<key>` is the fp32 master where
    the optimizer keeps one, else the weight; `optimizer.state.<key>.exp_avg` and so on are boxes of
    the same global shape. So any tensor, pipeline, virtual pipeline, data and expert parallel size
    loads what another one saved. A vocabulary that is padded to another size fits as far as both
    have it.

    The optimizer: `DistributedOptimizer`, `Float16OptimizerWithFloat16Params`, `FP32Optimizer`, or
    a chain of them. Not: Megatron-FSDP, parameters in FP8, the precision-aware optimizer, its
    offload to the CPU, the layer-wise optimizers.
    """

    def __init__(
        self,
        model_chunks: nn.Module | Sequence[nn.Module],
        optimizer: Any = None,
        objects: Mapping[str, Stateful] | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        """Take the state's parts; nothing is read yet.

        Args:
            model_chunks: The model, or the list of a virtual pipeline's chunks, with or without
                Megatron's wrappers.
            optimizer: Megatron's optimizer; None: a load for evaluation, which fills the weights
                from the masters.
            objects: Names to objects with `state_dict` and `load_state_dict`, equal on all ranks,
                such as the `OptimizerParamScheduler`. A checkpoint without one is no error.
            constants: Plain values that a checkpoint must have alike, such as the number of
                attention heads, which no tensor's shape shows.

        Raises:
            StateError: the optimizer is of a kind that is not known here.
        """
        from torch import nn

        given: Any = model_chunks
        self._chunks: list[nn.Module] = [given] if isinstance(given, nn.Module) else list(given)
        self._optimizer, self._objects = optimizer, dict(objects or {})
        self._constants = dict(constants or {})
        self._steps = Steps(owned(optimizer).inner)
        self._random = RandomStates()
        self._settings = GroupSettings()
        self._staged: list[tuple[torch.Tensor, torch.Tensor]] = []
        """(weight, its values in the checkpoint's dtype)."""
        self._values: Mapping[str, Any] = {}
        self._unstored: list[OwnedRange] = []
        """Ranges whose optimizer state the checkpoint lacks, for it is of before a first step."""
        self._seen: ModelView | None = None
        """State as `collect` has listed it, for the load that goes on with it."""

    def _view(self) -> ModelView:
        return ModelView(global_tensors(self._chunks), owned(self._optimizer))

    def collect(self, leaves: Leaves) -> None:
        """List this rank's boxes and values; see `Shards.collect`."""
        self._seen = view = self._view()
        for one in view.owned.ranges:
            tensor = view.tensor(one)
            watch(leaves, one, tensor)
            add_range(leaves, one, tensor)
        for tensor in view.others():
            leaves.watch(tensor.holder, tensor.name)
            for piece, box in tensor.boxes():
                leaves.add_box(
                    ("model", piece.key),
                    part(tensor.tensor.detach().view(-1), box, 0),
                    piece.shape,
                    box.offsets,
                    trained=False,
                    stored=piece.first,
                    alike=not tensor.is_buffer,
                )
        for inner in view.owned.inner:
            leaves.counts.append((inner.state, len(inner.state)))
            held = vars(inner)
            leaves.links += [(held, key, held[key]) for key in ("state", "param_groups")]
        group_settings.collect(leaves, view.owned, view.keys(), self._steps)
        self._random.collect(leaves)
        for extra in view.model.extra:
            if extra.first:
                leaves.add_value((*_EXTRA, extra.key), _extra_reader(extra.module))
        for number, scaler in self._scalers():
            leaves.add_value((*SCALERS, number), scaler.state_dict)
        for name, thing in self._objects.items():
            leaves.add_value((*OBJECTS, name), thing.state_dict)
        if self._constants:
            leaves.add_value(_CONSTANTS, lambda: self._constants)

    def _scalers(self) -> list[tuple[int, Any]]:
        found = enumerate(optimizers_of(self._optimizer))
        scalers = [(number, getattr(one, "grad_scaler", None)) for number, one in found]
        return [(number, one) for number, one in scalers if one is not None]

    def accept(self, filling: Filling) -> None:
        """Compare the checkpoint and plan the copies; see `Shards.accept`.

        The moments of a fresh optimizer are made, as zeros: without a step they change nothing.
        """
        self._seen = view = self._seen or self._view()
        self._values, self._settings = filling.values, GroupSettings()
        self._staged, self._unstored = [], []
        for one in view.owned.ranges:
            for piece, box in view.boxes(one):
                fill(filling, ("model", piece.key), part(one.master, box, one.begin), piece, box)
        for tensor in view.others():
            self._fill_weight(filling, tensor)
        saved = filling.values.get(".".join(_CONSTANTS), {})
        filling.wrong += [
            f"{name} is {value}, in the checkpoint {saved[name]}: train with {saved[name]}"
            for name, value in self._constants.items()
            if name in saved and saved[name] != value
        ]
        filling.wrong += [
            f"{'.'.join((*OBJECTS, name))}: {refusal}"
            for name, thing in self._objects.items()
            if (refusal := refusal_of(thing, filling.values.get(".".join((*OBJECTS, name)))))
        ]
        keys = {piece.key for one in view.model.tensors.values() for piece in one.pieces}
        filling.missing_or_new({f"model.{key}" for key in keys}, "model")
        if view.owned.inner:
            self._settings = group_settings.accept(filling, view.owned, view.keys())
            if self._settings.found:
                self._fill_states(filling, view, keys)
        self._random.accept(filling)

    def _fill_weight(self, filling: Filling, tensor: ModelTensor) -> None:
        """Plan the copies into a weight; a master of another precision is rounded in `finish`."""
        weight = tensor.tensor.detach()
        form = filling.form(f"model.{tensor.pieces[0].key}")
        is_half = weight.is_floating_point() and weight.element_size() == 2
        if form is not None and form[0] == "float32" and is_half:
            staged = weight.float()
            self._staged.append((weight, staged))
            weight = staged
        for piece, box in tensor.boxes():
            fill(filling, ("model", piece.key), part(weight.view(-1), box, 0), piece, box)

    def _fill_states(self, filling: Filling, view: ModelView, keys: set[str]) -> None:
        stored = {
            name: path
            for name, path in filling.paths.items()
            if path[:2] == STATE and name in filling.found.tensors
        }
        kinds = sorted({str(path[3]) for path in stored.values()})
        filling.wrong += filling.unless_of_others(
            [name for name, path in stored.items() if path[2] not in keys]
        )
        for one in view.owned.ranges:
            if not kinds:
                self._unstored.append(one)
                continue
            state = allocated(one, kinds)
            for kind in sorted({*kinds, *(key for key, _ in moments(one))}):
                for piece, box in view.boxes(one):
                    values = part(state[kind].view(-1), box, one.begin)
                    fill(filling, (*STATE, piece.key, kind), values, piece, box)

    def finish(self, *, partial: bool) -> None:
        """Round masters into the weights, gather these, restore the values; see `Shards.finish`.

        Megatron's own gather of parameters runs among data parallel ranks, as after each step.
        """
        view, self._seen = self._seen or self._view(), None
        end_gathers(self._optimizer)
        for weight, values in self._staged:
            weight.copy_(values)
        self._staged = []
        write_weights(view.owned, self._optimizer)
        if not partial:
            for one in self._unstored:
                one.inner.state.pop(one.slot, None)
        self._settings.restore(self._steps)
        self._restore_values(view)
        self._random.finish()

    def _restore_values(self, view: ModelView) -> None:
        for extra in view.model.extra:
            self._restore((*_EXTRA, extra.key), _extra_writer(extra.module))
        for number, scaler in self._scalers():
            self._restore((*SCALERS, number), scaler.load_state_dict)
        for name, thing in self._objects.items():
            self._restore((*OBJECTS, name), loader_of(thing))

    def _restore(self, path: tuple[str | int, ...], load: Any) -> None:
        name = ".".join(map(str, path))
        if name in self._values:
            load(self._values[name])


def _extra_reader(module: Any) -> Any:
    """Return the function that reads a module's extra state as plain data."""

    def read() -> Any:
        state = module.get_extra_state()
        return state.getvalue() if hasattr(state, "getvalue") else state

    return read


def _extra_writer(module: Any) -> Any:
    import io

    return lambda state: module.set_extra_state(
        io.BytesIO(state) if isinstance(state, bytes) else state
    )


def refusal_of(thing: Stateful, saved: Any) -> str:
    """Return the reason why a scheduler would refuse a state; empty: it is none, or takes it."""
    if saved is None or not _is_scheduler(thing):
        return ""
    trial: Any = copy(thing)
    trial.optimizer = SimpleNamespace(param_groups=[])
    try:
        loader_of(trial)(saved)
    except (AssertionError, KeyError) as error:
        return (
            f"{error!r}: train with the checkpoint's value, or say which counts with "
            "--override-opt_param-scheduler or --use-checkpoint-opt_param-scheduler"
        )
    return ""


def loader_of(thing: Stateful) -> Callable[[Any], Any]:
    """Return the function that gives an object a state in place of its own."""
    if not _is_scheduler(thing):
        return thing.load_state_dict

    def load(saved: Any) -> None:
        scheduler: Any = thing
        scheduler.num_steps = 0  # the stored steps are added to it
        scheduler.load_state_dict(saved)

    return load


def _is_scheduler(thing: Any) -> bool:
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    return isinstance(thing, OptimizerParamScheduler)


OWNER: Final = "_holdfast_state_owner"
"""Attribute of an optimizer that has one."""


class StateOwner(Protocol):
    """The lister of the state in place of `MegatronShards`."""

    def shards(
        self,
        objects: Mapping[str, Stateful] | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> Shards:
        """Return the whole state; the arguments are those of `MegatronShards`."""


def owner_of(optimizer: Any) -> StateOwner | None:
    """Return an optimizer's owner; None: it has none."""
    found: StateOwner | None = getattr(optimizer, OWNER, None)
    return found
