"""Torch's own modules and optimizers as `Shards`: plain, DDP, FSDP2, tensor parallelism.

Belongs here: what fills modules and optimizers from a checkpoint, under torch's names; the
comparison of a stored optimizer with the one that is to load it, for all frameworks. Does not
belong here: the walk that lists them (`state_dict`).

An optimizer is compared by its class, if that was stored, and by the settings of the groups, which
every optimizer has. The state's own keys prove nothing: they are unknown before a first step, and
Adamax and Adam both have an `exp_avg`. A state that fits is loaded with all its values: a learning
rate continues as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.trainer.leaves import Leaves, TensorLeaf, is_own, name_of, of_rank
from holdfast.flash.trainer.planner import locate, locate_tensor
from holdfast.flash.trainer.reshard import Filling
from holdfast.flash.trainer.state_dict import (
    Models,
    Optimizers,
    classes_of,
    collect_torch,
    parameter_names,
    path_of,
)

if TYPE_CHECKING:
    import torch

    from holdfast.flash.memory.shard_table import TensorItem

OF_THE_CLASS: Final = frozenset(("decoupled_weight_decay",))
"""Settings that are not restored: this one tells AdamW from Adam, so the script decides it."""
_OF_SCHEDULERS: Final = frozenset(
    ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr")
)
"""Settings that torch's schedulers add to a group of any optimizer."""
_FORMING: Final = ("amsgrad", "centered")
"""Settings that decide the tensors of a parameter's state, and never change during a training.
(A momentum decides them too, but schedulers change it.)"""
_ALIKE: Final = {"AdamW": "Adam"}
"""Classes that keep the same state; not every torch derives one from the other."""
BY_NUMBER: Final = (
    "{}: the checkpoint, of another format, does not say which parameters are in the group: its "
    "settings are taken as those of this number"
)
_BUFFERS_LOST: Final = "buffers of rank {} are those of another rank: its own are lost"


class TorchShards:
    """Modules and optimizers of torch; see `Shards`."""

    def __init__(self, models: Models, optimizers: Optimizers) -> None:
        self._models, self._optimizers = models, optimizers
        self._begin()

    def _begin(self) -> None:
        self._fresh: dict[int, dict[Any, dict[Any, Any]]] = {}
        self._settings: list[tuple[dict[str, Any], str, Any]] = []
        self._lacks_own = False
        """True: the world that saved kept buffers per rank, and this rank's are lost."""
        self._unfit: set[int] = set()
        """Ids of parameters with another form in the checkpoint: they stay as they are."""

    def collect(self, leaves: Leaves) -> None:
        """List modules and optimizers; see `Shards.collect`."""
        collect_torch(leaves, self._models, self._optimizers)

    def accept(self, filling: Filling) -> None:
        """Plan the copies into modules and optimizers; see `Shards.accept`."""
        self._begin()
        self._fill_models(filling)
        self._fill_optimizers(filling)
        if self._lacks_own:
            filling.notes.append(_BUFFERS_LOST.format(filling.place.rank))

    def finish(self, *, partial: bool) -> None:
        """Give the optimizers their state; see `Shards.finish`."""
        self._unshard_nothing()
        for optimizer in self._optimizers.values():
            fresh = self._fresh[id(optimizer)]
            if partial:
                fresh = {**optimizer.state, **fresh}
            optimizer.state.clear()
            optimizer.state.update(fresh)
        for group, key, value in self._settings:
            _set(group, key, value)

    def _fill_models(self, filling: Filling) -> None:
        names, first = set(), dict[int, str]()
        for leaf in filling.leaves.tensors:
            if leaf.path[0] != "model":
                continue
            names.add(leaf.name)
            name = self._stored_name(filling, leaf)
            other = first.setdefault(id(leaf.tensor), name)
            if not filling.are_one(other, name):
                continue
            local = locate(leaf, name, filling.place)
            if not filling.fill(name, local, files_first=leaf.buffer):
                self._unfit.add(id(leaf.tensor))
        filling.missing_or_new(names, "model")

    def _stored_name(self, filling: Filling, leaf: TensorLeaf) -> str:
        """Return the name under which this rank's values of a tensor are stored.

        A buffer's own values go back to the rank of an equally large world; else all get rank 0's.
        """
        found, place = filling.found, filling.place
        if not leaf.buffer or found.world != place.world:
            return leaf.name
        own = of_rank(leaf, place.rank).name
        if own in found.tensors:
            return own
        self._lacks_own |= is_own(leaf) and any(
            of_rank(leaf, rank).name in found.tensors for rank in range(found.world)
        )
        return leaf.name

    def _fill_optimizers(self, filling: Filling) -> None:
        for prefix, optimizer in self._optimizers.items():
            path = path_of("optimizer", prefix)
            names = parameter_names(self._models, prefix)
            kinds, groups = classes_of(optimizer), optimizer.param_groups
            if other := other_optimizer(filling, path, kinds, groups):
                filling.wrong.append(f"{name_of(path)}: {other}")
                self._fresh[id(optimizer)] = {}
                continue
            by_name = {
                names[id(parameter)]: (parameter, group)
                for group in optimizer.param_groups
                for parameter in group["params"]
            }
            fresh: dict[Any, dict[Any, Any]] = {}
            for name, full in filling.paths.items():
                if full[: len(path) + 1] != (*path, "state"):
                    continue
                owner, key = str(full[len(path) + 1]), full[len(path) + 2]
                if owner not in by_name:
                    filling.wrong += filling.unless_of_others([name])
                    continue
                parameter, group = by_name[owner]
                if id(parameter) in self._unfit:
                    continue
                state = fresh.setdefault(parameter, {})
                if name in filling.values:
                    state[key] = filling.values[name]
                elif name in filling.found.tensors:
                    here = (optimizer.state.get(parameter) or {}).get(key)
                    state[key] = self._state_tensor(filling, name, key, parameter, group, here)
            self._fresh[id(optimizer)] = {
                one: state for one, state in fresh.items() if id(one) not in self._unfit
            }
            self._compare_groups(filling, path, optimizer, names)
        given = {name_of(path_of("optimizer", prefix)) for prefix in self._optimizers}
        if given:  # without any optimizer it is a load for evaluation
            filling.wrong += filling.unless_of_others(filling.found.optimizers.keys() - given)

    def _state_tensor(
        self,
        filling: Filling,
        name: str,
        key: str | int,
        parameter: Any,
        group: dict[str, Any],
        here: Any,
    ) -> Any:
        """Return the tensor for a state entry, with the copies into it planned.

        A tensor of the parameter's shape is sharded like the parameter. Other state is placed as
        torch does: a step count on the CPU, the rest on the parameter's device. An existing tensor
        of that form is filled in place: touching new memory takes longer than the copy.
        """
        import torch

        item = filling.found.tensors[name][0].item
        dtype = getattr(torch, item.dtype)
        whole = item.shape == tuple(parameter.shape)
        on_device = whole or key != "step" or group.get("capturable") or group.get("fused")
        device = parameter.device if on_device else torch.device("cpu")
        like = parameter if whole else None
        if _is_like(here, item, dtype, device, like):
            state = here
        elif whole:
            state = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        else:
            state = torch.empty(item.shape, dtype=dtype, device=device)
        if not filling.fill(name, locate_tensor(state, name, filling.place)):
            self._unfit.add(id(parameter))
        return state

    def _compare_groups(
        self, filling: Filling, path: tuple[str, ...], optimizer: Any, names: Mapping[int, str]
    ) -> None:
        """Compare the groups' parameters; plan the copies of settings that are tensors."""
        begin, wrong = name_of((*path, "param_groups")), filling.wrong
        settings = filling.below((*path, "param_groups"))
        there = {number for number, _ in settings}
        others = {
            number
            for (number, _), name in settings.items()
            if number not in range(len(optimizer.param_groups)) and filling.is_of_others(name)
        }
        if there - others != set(range(len(optimizer.param_groups))):
            wrong.append(
                f"{begin}: {len(there)} groups in the checkpoint, "
                f"{len(optimizer.param_groups)} here: add_param_group() before load() what the "
                "run that saved had added by then"
            )
            return
        for number, group in enumerate(optimizer.param_groups):
            held = f"{begin}.{number}.params"
            own = [names[id(parameter)] for parameter in group["params"]]
            saved = filling.values.get(held)
            if saved is None:
                filling.notes.append(BY_NUMBER.format(held.removesuffix(".params")))
            elif sorted(saved) != sorted(filling.group_members(held, own)):
                wrong.append(f"{begin}.{number}: other parameters in the checkpoint")
                if not {*saved} & {*own}:
                    continue  # another group; else a scheduler that goes on has set its settings
            for (at, key), name in settings.items():
                if at == number and key not in OF_THE_CLASS and key != "params":
                    # Also one that the group lacks, such as one that a scheduler has added.
                    value = self._stored_setting(filling, name, group.get(key))
                    self._settings.append((group, key, value))

    def _stored_setting(self, filling: Filling, name: str, here: Any) -> Any:
        """Return a stored setting; of a tensor the copies are planned."""
        if name not in filling.found.tensors:
            return filling.values[name]
        value = _new_like(filling.found.tensors[name][0].item, here)
        filling.fill(name, locate_tensor(value, name, filling.place))
        return value

    def _unshard_nothing(self) -> None:
        """Have FSDP drop its gathered parameters: they would outlive the values they came from."""
        for model in self._models.values():
            for module in model.modules():
                if hasattr(module, "reshard") and hasattr(module, "_get_fsdp_state"):
                    module.reshard()  # type: ignore[operator] # checked above


def other_optimizer(
    filling: Filling,
    path: tuple[str, ...],
    kinds: Sequence[str],
    groups: Sequence[Mapping[str, Any]],
    apart: AbstractSet[str] = frozenset(),
) -> str:
    """Return the reason why the stored state is another optimizer's; empty: it is not.

    kinds, groups: of the present optimizer. apart: settings that do not count.
    """
    found = filling.found
    settings = filling.below((*path, "param_groups"))
    saved = [
        {key: filling.values.get(name) for (at, key), name in settings.items() if at == number}
        for number in range(len(groups))
    ]
    there, here = {key for _, key in settings}, {key for one in groups for key in one}
    return (
        other_class(found.optimizers.get(name_of(path), ()), kinds, found.step)
        or other_settings(there - apart, here - apart)
        or other_form(saved, groups, found.step)
    )


def _set(group: dict[str, Any], key: str, value: Any) -> None:
    """Set a group's setting in the script's own form: a number or a tensor.

    A compiled step and a CUDA graph hold that very tensor; some of torch's steps take no tensor.
    """
    import torch

    here = group.get(key)
    is_tensor = isinstance(value, torch.Tensor)
    if isinstance(here, torch.Tensor) and is_tensor and here.shape == value.shape:
        here.copy_(value)
    elif isinstance(here, torch.Tensor) and here.numel() == 1 and type(value) in (int, float):
        here.fill_(value)
    elif type(here) is float and is_tensor and value.numel() == 1:
        group[key] = value.item()
    else:
        group[key] = value


def other_class(saved: Sequence[str], live: Sequence[str], step: int) -> str:
    """Return the reason why the class does not fit; empty: same, akin, or unknown.

    Classes are akin if one is derived from the other, or both from the same class of torch: they
    keep the state of that base. Module names do not count, or a script that moves lost its state.
    """
    if not saved or not live:
        return ""
    one, other = [_short(name) for name in saved], [_short(name) for name in live]
    if one[0] in other or other[0] in one or _of_torch(saved) & _of_torch(live):
        return ""
    return (
        f"the checkpoint of step {step} was saved by {_bare(saved[0])} ({saved[0]}), this job has "
        f"{_bare(live[0])} ({live[0]}): train with {_bare(saved[0])}, derive a class of your own "
        "from it if it is the same under another name, or take load(partial=True), which leaves "
        "this optimizer's state as it is"
    )


def _bare(name: str) -> str:
    return name.rpartition(".")[2]


def _short(name: str) -> str:
    return _ALIKE.get(_bare(name), _bare(name))


def _of_torch(names: Sequence[str]) -> set[str]:
    return {_short(name) for name in names if name.startswith("torch.optim.")}


def other_settings(saved: AbstractSet[str], live: AbstractSet[str]) -> str:
    """Return the reason why the settings are another optimizer's; empty: none is known.

    They differ if each side lacks a setting of the other. More settings on one side may only mean
    another release of torch.
    """
    more, less = saved - live - _OF_SCHEDULERS, live - saved - _OF_SCHEDULERS
    if not saved or not more or not less:
        return ""
    return (
        f"another optimizer's settings: {', '.join(sorted(more))} are not in the state, "
        f"{', '.join(sorted(less))} are not in the checkpoint"
    )


def other_form(
    saved: Sequence[Mapping[Any, Any]], live: Sequence[Mapping[str, Any]], step: int
) -> str:
    """Return the setting that makes the optimizer keep other tensors than saved; empty: none.

    saved, live: settings of each group, in order.
    """
    pairs = ((one, other, key) for one, other in zip(saved, live, strict=False) for key in _FORMING)
    found = (
        f"the checkpoint of step {step} was saved with {key}={one[key]}, this job has "
        f"{key}={other[key]}: set {key}={one[key]}, or take load(partial=True), which leaves this "
        "optimizer's state as it is"
        for one, other, key in pairs
        if one.get(key) is not None and key in other and bool(one[key]) != bool(other[key])
    )
    return next(found, "")


def _is_like(
    here: Any, item: TensorItem, dtype: torch.dtype, device: torch.device, like: Any
) -> bool:
    """Return True if an optimizer's tensor equals in form the one that would be made anew."""
    import torch
    from torch.distributed.tensor import DTensor

    if not isinstance(here, torch.Tensor) or here.requires_grad:
        return False
    if (tuple(here.shape), here.dtype, here.device) != (item.shape, dtype, device):
        return False
    if like is None or not isinstance(like, DTensor):
        wanted = (torch.empty(item.shape, device="meta") if like is None else like).stride()
        return type(here) is torch.Tensor and here.stride() == wanted
    return (
        isinstance(here, DTensor)
        and here.device_mesh == like.device_mesh
        and here.placements == like.placements
    )


def _new_like(item: TensorItem, here: Any) -> torch.Tensor:
    """Return a new tensor for a stored setting, on the device of the present one."""
    import torch

    device = here.device if isinstance(here, torch.Tensor) else "cpu"
    return torch.empty(item.shape, dtype=getattr(torch, item.dtype), device=device)
