"""The user's parameter groups in an engine: class, settings, and parameters of each.

Belongs here: their list, their comparison with a checkpoint, what a start sets. Does not belong
here: the state of parameters (`optimizer_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from holdfast.flash.trainer.leaves import Leaves, StateError
from holdfast.flash.trainer.reshard import Filling
from holdfast.flash.trainer.state_dict import classes_of
from holdfast.flash.trainer.torch_shards import (
    BY_NUMBER,
    OF_THE_CLASS,
    other_class,
    other_form,
    other_settings,
)
from holdfast.integrations.deepspeed.optimizer_state import Names
from holdfast.integrations.deepspeed.partitions import Flat

_GROUPS: Final = ("optimizer", "param_groups")
_ADAMS: Final = frozenset(("DeepSpeedCPUAdam", "FusedAdam"))
"""DeepSpeed's optimizers that keep torch Adam's state: they take each other's."""
_ADAM: Final = "torch.optim.adam.Adam"
_OF_KERNELS: Final = frozenset(("bias_correction",))
"""Settings that DeepSpeed's Adams have besides; torch's always correct the bias."""
Setting = tuple[dict[str, Any], str, Any]
"""(group, key, value) to set at the end of a start."""


def collect_groups(leaves: Leaves, inner: Any, flats: Sequence[Flat], names: Names) -> None:
    """List class, groups and settings; raises `StateError`."""
    leaves.optimizers["optimizer"] = kinds_of(inner)
    leaves.counts.append((inner.param_groups, len(inner.param_groups)))
    leaves.links.append((vars(inner), "param_groups", inner.param_groups))
    for number, group in enumerate(inner.param_groups):
        leaves.counts.append((group, len(group)))
        for key in group:
            if key in _OF_KERNELS and group[key]:
                continue
            read = _setting(group, key)
            if key == "params":
                read = _constant(members(flats, number, names))
            leaves.add_value((*_GROUPS, number, key), read)


def kinds_of(inner: Any) -> tuple[str, ...]:
    """Return the classes of the inner optimizer, with torch's Adam for DeepSpeed's own."""
    kinds = classes_of(inner)
    if any(kind.rpartition(".")[2] in _ADAMS for kind in kinds):
        return (*kinds, _ADAM)
    return kinds


def members(flats: Sequence[Flat], number: int, names: Names) -> list[str]:
    """Return the parameters of a group by name, in the order of the flat tensors."""
    held = [one for flat in flats if flat.group == number for one in flat.parameters]
    return [names[id(one)] for one in held]


def _setting(group: Mapping[str, Any], key: str) -> Callable[[], Any]:
    import torch

    if isinstance(group[key], torch.Tensor):
        raise StateError(f"the setting {key} of a parameter group is a tensor: set it to a number")
    return lambda: group[key]


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def other_optimizer(filling: Filling, inner: Any) -> str:
    """Return the reason why the stored state is another optimizer's; empty: it is not."""
    found, groups = filling.found, inner.param_groups
    settings = filling.below(_GROUPS)
    saved = [
        {key: filling.values.get(name) for (at, key), name in settings.items() if at == number}
        for number in range(len(groups))
    ]
    keys = {str(key) for _, key in settings} - _OF_KERNELS
    return (
        other_class(found.optimizers.get("optimizer", ()), kinds_of(inner), found.step)
        or other_settings(keys, {key for one in groups for key in one} - _OF_KERNELS)
        or other_form(saved, groups, found.step)
    )


def accept_groups(
    filling: Filling, inner: Any, flats: Sequence[Flat], names: Names, frozen: AbstractSet[str]
) -> list[Setting]:
    """Compare the groups' parameters, note differences; return the settings that are to be set.

    A group whose parameters differ takes its settings all the same, where `partial` accepts the
    difference: a scheduler that goes on has set them for this step.

    frozen: names of parameters without an optimizer's state here; torch's groups may have them.
    """
    settings, begin = filling.below(_GROUPS), ".".join(_GROUPS)
    there, here = {number for number, _ in settings}, set(range(len(inner.param_groups)))
    if there != here:
        filling.wrong.append(
            f"{begin}: {len(there)} groups in the checkpoint, {len(here)} here: give "
            "deepspeed.initialize an optimizer with the groups of the run that saved"
        )
        return []
    found: list[Setting] = []
    same_kind = filling.found.optimizers.get("optimizer", ())[:1] == kinds_of(inner)[:1]
    for number, group in enumerate(inner.param_groups):
        held = f"{begin}.{number}.params"
        own = members(flats, number, names)
        saved, wanted = set(filling.values.get(held, ())), set(filling.group_members(held, own))
        if held not in filling.values:
            filling.notes.append(BY_NUMBER.format(held.removesuffix(".params")))
        elif saved - frozen != wanted:
            filling.wrong.append(_other_members(held, saved - frozen, wanted))
            if not saved & wanted:
                continue  # another group
        for (at, key), name in settings.items():
            moved = same_kind or key in group or str(key) in ("initial_lr", "max_lr", "min_lr")
            if at == number and moved and key != "params" and key not in OF_THE_CLASS:
                found += _read(filling, group, str(key), name)
    return found


def _other_members(held: str, saved: AbstractSet[str], wanted: AbstractSet[str]) -> str:
    more, less = sorted(wanted - saved)[:5], sorted(saved - wanted)[:5]
    lacking = f"the checkpoint's lacks {', '.join(more)}" if more else ""
    extra = f"the checkpoint's has {', '.join(less)} besides" if less else ""
    return (
        f"{held}: other parameters than here: {' and '.join(filter(None, (lacking, extra)))}. "
        "Group the parameters as the run that saved did"
    )


def _read(filling: Filling, group: dict[str, Any], key: str, name: str) -> list[Setting]:
    if name in filling.values:
        return [(group, key, filling.values[name])]
    filling.notes.append(f"{name} is a tensor in the checkpoint: it stays {group.get(key)!r} here")
    return []
