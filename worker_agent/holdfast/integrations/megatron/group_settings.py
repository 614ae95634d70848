"""Settings of an optimizer's parameter groups: read, compared with a checkpoint's, restored.

A group is known by its parameters, not by its number: which groups there are depends on the layout,
such as a stage without any bias, or experts that are not parallel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from holdfast.flash.trainer.leaves import Leaves, constant
from holdfast.flash.trainer.reshard import Filling
from holdfast.flash.trainer.state_dict import classes_of
from holdfast.flash.trainer.torch_shards import OF_THE_CLASS, other_class, other_form
from holdfast.integrations.megatron.owned_ranges import Owned

if TYPE_CHECKING:
    import torch

GROUPS: Final = ("optimizer", "param_groups")
_ADAM: Final = "torch.optim.adam.Adam"
_OF_THE_LAYOUT: Final = frozenset(("params", "step", "is_expert_parallel", "default_config"))
"""Settings that are not restored: the layout or the script decides them, or `step` is apart."""
_MULTIPLIERS: Final = ("wd_mult", "lr_mult")
"""GroupSettings by which Megatron tells groups apart."""


_counted: Final = WeakKeyDictionary["torch.optim.Optimizer", int]()
"""Steps of each inner optimizer that somebody has asked for; a load sets them."""


def _count(optimizer: torch.optim.Optimizer, *_: object) -> None:
    _counted[optimizer] += 1


BY_KIND: Final = (
    "{}: the checkpoint, of another format, does not say which parameters are in a group: the "
    "settings are taken of one with the same multipliers"
)


class Steps:
    """Number of steps that the inner optimizers have done: of all parameters alike."""

    def __init__(self, inner: Sequence[torch.optim.Optimizer]) -> None:
        """Count the steps from now on, for a rank whose optimizers own nothing."""
        self._inner = inner
        for one in inner[:1]:
            if one not in _counted:
                _counted[one] = 0
                one.register_step_post_hook(_count)

    def read(self) -> int:
        """Return the number; torch keeps it for each parameter, the fused Adam for each group."""
        for inner in self._inner:
            for state in inner.state.values():
                if "step" in state:
                    return int(float(state["step"]))
        return max(
            (int(group.get("step") or 0) for inner in self._inner for group in inner.param_groups),
            default=0,
        ) or max((_counted[one] for one in self._inner[:1]), default=0)

    def set(self, step: int) -> None:
        """Set the number in all of them."""
        import torch

        _counted.update(dict.fromkeys(self._inner[:1], step))
        for inner in self._inner:
            ours = isinstance(inner, torch.optim.Adam)  # AdamW too
            for group in inner.param_groups:
                if not ours:
                    group["step"] = step
                for one in group["params"] if ours else ():
                    state = inner.state.get(one)
                    if state and isinstance(state.get("step"), torch.Tensor):
                        state["step"].fill_(step)


def classes(owned: Owned) -> tuple[str, ...]:
    """Return the classes of the inner optimizers.

    The fused Adam of Apex and of Transformer Engine keeps what torch's keeps.
    """
    found = classes_of(owned.inner[0])
    is_fused = any(one.endswith(".FusedAdam") for one in found)
    return (*found, _ADAM) if is_fused and _ADAM not in found else found


def collect(leaves: Leaves, owned: Owned, keys: Mapping[int, Sequence[str]], steps: Steps) -> None:
    """List the settings of all groups, and the global tensors in them.

    keys: id of an optimizer's parameter → global tensors that it is a part of.
    """
    if not owned.inner:
        return
    leaves.optimizers["optimizer"] = classes(owned)
    for number, group in enumerate(owned.groups):
        leaves.counts += [(group, len(group)), (group["params"], len(group["params"]))]
        for key in group:
            if key not in ("params", "step"):
                leaves.add_value((*GROUPS, number, key), _reader(group, key))
        leaves.add_value((*GROUPS, number, "step"), steps.read)
        leaves.add_value((*GROUPS, number, "params"), constant(_members(group, keys)))


def _members(group: Mapping[str, Any], keys: Mapping[int, Sequence[str]]) -> list[str]:
    return sorted({key for one in group["params"] for key in keys[id(one)]})


def _reader(group: Mapping[str, Any], key: str) -> Any:
    def read() -> Any:
        value = group[key]
        return value.item() if hasattr(value, "item") else value

    return read


@dataclass(slots=True)
class GroupSettings:
    """Settings of a checkpoint that fit, to be restored once all ranks have agreed."""

    found: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list)
    """(group, key, value)"""
    step: int | None = None

    def restore(self, steps: Steps) -> None:
        """Set them, in the script's own form: a number or a tensor."""
        for group, key, value in self.found:
            here = group.get(key)
            if here is not None and hasattr(here, "fill_"):
                here.fill_(value)
            else:
                group[key] = value
        if self.step is not None:
            steps.set(self.step)


def accept(filling: Filling, owned: Owned, keys: Mapping[int, Sequence[str]]) -> GroupSettings:
    """Compare the groups; return the settings to restore. Differences go to `Filling.wrong`."""
    saved, live = _saved(filling), owned.groups
    if not saved:
        filling.wrong.append(
            f"{'.'.join(GROUPS)}: the checkpoint has no state of an optimizer: load the weights "
            "alone (--no-load-optim, or MegatronShards without an optimizer)"
        )
        return GroupSettings()
    if other := other_class(
        filling.found.optimizers.get("optimizer", ()), classes(owned), filling.step
    ) or other_form(list(saved.values()), live, filling.step):
        filling.wrong.append(f"optimizer: {other}")
        return GroupSettings()
    settings = GroupSettings(
        step=max((one.get("step") or 0 for one in saved.values()), default=None)
    )
    of_key = {key: number for number, one in saved.items() for key in one.get("params", ())}
    for number, group in enumerate(live):
        name = ".".join(map(str, (*GROUPS, number)))
        members = filling.group_members(f"{name}.params", _members(group, keys))
        there = sorted({of_key[key] for key in members if key in of_key})
        if not of_key:
            there = _of_kind(group, saved)
            filling.notes.append(BY_KIND.format(name))
        elif missing := sorted(key for key in members if key not in of_key):
            filling.wrong.append(f"{name}: {missing[0]} is in no group of the checkpoint")
            continue
        if there:
            filling.wrong += _differences(name, group, saved, there)
            settings.found += [
                (group, key, value)
                for key, value in saved[there[0]].items()
                if key not in _OF_THE_LAYOUT | OF_THE_CLASS
            ]
    return settings


def _of_kind(group: Mapping[str, Any], saved: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Return the first stored group that has a group's multipliers, or the first one."""
    alike = [
        number
        for number, one in saved.items()
        if all(one.get(key) == group.get(key) for key in _MULTIPLIERS)
    ]
    return [*alike, *saved][:1]


def _saved(filling: Filling) -> dict[int, dict[str, Any]]:
    """Return the settings of each of the checkpoint's groups."""
    found: dict[int, dict[str, Any]] = {}
    for (number, key), name in filling.below(GROUPS).items():
        if name in filling.values:
            found.setdefault(int(number), {})[key] = filling.values[name]
    return dict(sorted(found.items()))


def _differences(
    name: str, group: Mapping[str, Any], saved: Mapping[int, Mapping[str, Any]], there: list[int]
) -> list[str]:
    """Return differences that no restore can bridge."""
    first = saved[there[0]]
    wrong = [
        f"{name}: its parameters had {key}={first[key]} in group {there[0]} of the checkpoint, "
        f"and {key}={saved[other].get(key)} in group {other}: give each a group of its own"
        for other in there[1:]
        for key in first
        if key not in _OF_THE_LAYOUT and first[key] != saved[other].get(key)
    ]
    wrong += [
        f"{name}.{key} is {group[key]}, in the checkpoint {first[key]}: train with {first[key]}"
        for key in _MULTIPLIERS
        if key in group and key in first and group[key] != first[key]
    ]
    return wrong
