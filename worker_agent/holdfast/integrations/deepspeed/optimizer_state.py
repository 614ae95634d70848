"""State of ZeRO's inner optimizer: moments and step counts of flat tensors, and the user's groups.

All of it has torch's names of parameters. Belongs here: its list, its comparison with a checkpoint,
what a start installs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.trainer.leaves import Leaves, StateError, constant
from holdfast.flash.trainer.reshard import Filling
from holdfast.flash.trainer.state_dict import classes_of
from holdfast.flash.trainer.torch_shards import BY_NUMBER, OF_THE_CLASS
from holdfast.integrations.deepspeed.partitions import Flat, is_stored

if TYPE_CHECKING:
    import torch


_STATE: Final = ("optimizer", "state")
_STEP: Final = "step"
Names = Mapping[int, str]
"""Id of a parameter → its name."""


def collect_state(leaves: Leaves, inner: Any, flats: Sequence[Flat], names: Names) -> None:
    """List what the inner optimizer keeps; raises `StateError` for what is no part of a parameter.

    All ranks give a step count that is a number: they agree by name who stores it.
    """
    leaves.counts.append((inner.state, len(inner.state)))
    leaves.links.append((vars(inner), "state", inner.state))
    for flat in flats:
        state = inner.state.get(flat.master)
        if not state:
            continue
        leaves.links.append((inner.state, flat.master, state))
        leaves.counts.append((state, len(state)))
        for key, value in state.items():
            _collect_entry(leaves, flat, state, key, value, names)


def _collect_entry(
    leaves: Leaves, flat: Flat, state: MutableMapping[str, Any], key: str, value: Any, names: Names
) -> None:
    import torch

    if not isinstance(value, torch.Tensor):
        for parameter in flat.parameters:
            path = (*_STATE, names[id(parameter)], key)
            leaves.add_value(path, _number(state, key))
        return
    leaves.watch(state, key)
    if is_scalar(key, value):
        _collect_scalar(leaves, flat, key, value, names)
    elif value.shape == flat.master.shape:
        for piece in flat.pieces:
            path = (*_STATE, names[id(piece.parameter)], key)
            stored = is_stored(piece.parameter)
            for values, offsets in piece.boxes(value):
                leaves.add_box(path, values, piece.shape, offsets, stored=stored)
    else:
        raise StateError(
            f"the optimizer keeps {key} of shape {tuple(value.shape)} for a partition of "
            f"{flat.master.numel()} elements: only one number, or one for each element, can be "
            "given to parameters"
        )


def is_scalar(key: str, value: torch.Tensor) -> bool:
    """Return True if a state entry is one number for a whole partition, such as a step count."""
    return key == _STEP or not value.dim()


def _collect_scalar(leaves: Leaves, flat: Flat, key: str, value: Any, names: Names) -> None:
    """Add a number of the partition for each parameter: who has its first element stores it."""
    begins = {id(piece.parameter): piece.begin for piece in flat.pieces}
    here = [one for one in flat.parameters if id(one) in begins] or flat.parameters[:1]
    for parameter in here:
        path = (*_STATE, names[id(parameter)], key)
        stored = begins.get(id(parameter)) == 0 and is_stored(parameter)
        # A checkpoint of torch may have given two partitions of a parameter unlike counts.
        leaves.add_box(path, value.detach().view(()), (), (), stored=stored, alike=False)


def _number(state: Mapping[str, Any], key: str) -> Callable[[], Any]:
    """Return a reader of a number, as the tensor that torch's optimizers have in its place."""
    import torch

    if not isinstance(state[key], (int, float)):
        raise StateError(f"the optimizer keeps {key}, a {type(state[key]).__name__}: no number")
    return lambda: torch.tensor(float(state[key]))


@dataclass(slots=True)
class Fresh:
    """A state that is being filled; it replaces the optimizer's once all ranks have agreed."""

    flat: Flat
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """One number for each element, by key."""
    numbers: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    """Key → (stored name, tensor) of each parameter."""


def accept_state(filling: Filling, inner: Any, flats: Sequence[Flat], names: Names) -> list[Fresh]:
    """Plan the copies into moments and step counts; note those that the checkpoint lacks.

    Moments that do not exist yet are made here. The optimizer gets them in `install`.
    """
    stored = _stored_keys(filling)
    known = {names[id(one)] for flat in flats for one in flat.parameters}
    for owner in sorted(stored.keys() - known):
        held = [".".join((*_STATE, owner, key)) for key in sorted(stored[owner])]
        filling.wrong += filling.unless_of_others(held)
    fresh = []
    for flat in flats:
        state = inner.state.get(flat.master) or {}
        one = Fresh(flat)
        keys = {key for owner in flat.parameters for key in stored.get(names[id(owner)], ())}
        for key in sorted(keys):
            if _is_number(filling, flat, key, names):
                _accept_numbers(filling, one, key, names)
            else:
                _accept_elements(filling, one, key, state.get(key), names)
        fresh.append(one)
    return fresh


def _stored_keys(filling: Filling) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for owner, key in filling.below(_STATE):
        found.setdefault(str(owner), set()).add(str(key))
    return found


def _is_number(filling: Filling, flat: Flat, key: str, names: Names) -> bool:
    """Return True if the checkpoint has one number under a key, and none for each element."""
    if key == _STEP:
        return True
    stored = [".".join((*_STATE, names[id(one)], key)) for one in flat.parameters]
    forms = [filling.form(name) for name in stored]
    return all(form is None or not form[1] for form in forms)


def _accept_elements(filling: Filling, fresh: Fresh, key: str, here: Any, names: Names) -> None:
    """Plan the copies into one number for each element, in the place that exists if it fits."""
    import torch

    master = fresh.flat.master.detach()
    fits = (
        isinstance(here, torch.Tensor)
        and here.shape == master.shape
        and here.device == master.device
    )
    values = here if fits else torch.zeros_like(master)
    fresh.tensors[key] = values
    for piece in fresh.flat.pieces:
        name = ".".join((*_STATE, names[id(piece.parameter)], key))
        for box, offsets in piece.boxes(values):
            if not filling.fill_box(name, box, piece.shape, offsets):
                break


def _accept_numbers(filling: Filling, fresh: Fresh, key: str, names: Names) -> None:
    import torch

    here = [piece.parameter for piece in fresh.flat.pieces] or fresh.flat.parameters[:1]
    found = fresh.numbers.setdefault(key, [])
    for parameter in here:
        name = ".".join((*_STATE, names[id(parameter)], key))
        if name in filling.values:
            found.append((name, filling.values[name]))
            continue
        form = filling.form(name)
        value = torch.zeros((), dtype=getattr(torch, form[0]) if form else torch.float32)
        if filling.fill_box(name, value, (), ()):
            found.append((name, value))


def install(inner: Any, fresh: Sequence[Fresh], *, partial: bool) -> list[str]:
    """Give the optimizer the filled state; return notes for the user.

    partial: what was not filled stays as it is.
    """
    notes = []
    for one in fresh:
        state: dict[str, Any] = dict(one.tensors)
        before = inner.state.get(one.flat.master) or {}
        for key, found in one.numbers.items():
            numbers = {float(value) for _, value in found}
            if len(numbers) > 1:
                notes.append(_unlike(key, found))
            if numbers:
                state[key] = _as_kept(inner, one.flat, before.get(key), max(numbers))
        if partial:
            state = {**before, **state}
        if state:
            inner.state[one.flat.master] = state
        else:
            inner.state.pop(one.flat.master, None)
    return notes


def _unlike(key: str, found: Sequence[tuple[str, Any]]) -> str:
    ordered = sorted(found, key=lambda pair: float(pair[1]))
    (low, least), (high, most) = ordered[0], ordered[-1]
    return (
        f"{low} is {float(least):g}, {high} is {float(most):g}: ZeRO keeps one {key} for the "
        "parameters of a partition, and takes the larger one"
    )


def _as_kept(inner: Any, flat: Flat, before: Any, number: float) -> Any:
    """Return a number as the optimizer keeps it: torch's in a tensor, DeepSpeed's in an int."""
    import torch

    if isinstance(before, torch.Tensor):
        return torch.full_like(before, number)
    if before is None and is_of_torch(inner):
        settings = inner.param_groups[flat.group]
        on_device = settings.get("capturable") or settings.get("fused")
        device = flat.master.device if on_device else torch.device("cpu")
        return torch.tensor(number, dtype=torch.float32, device=device)
    return int(number)


def is_of_torch(inner: Any) -> bool:
    """Return True if an optimizer is one of torch's, or derived from one."""
    from torch.optim import Optimizer

    return any(
        kind.__module__.startswith("torch.optim.") and kind is not Optimizer
        for kind in type(inner).__mro__
        if issubclass(kind, Optimizer)
    )


_GROUPS: Final = ("optimizer", "param_groups")
_ADAMS: Final = frozenset(("DeepSpeedCPUAdam", "FusedAdam"))
"""DeepSpeed's optimizers that keep torch Adam's state: they take each other's."""
_ADAM: Final = "torch.optim.adam.Adam"
OF_KERNELS: Final = frozenset(("bias_correction",))
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
            if key in OF_KERNELS and group[key]:
                continue
            read = _setting(group, key)
            if key == "params":
                read = constant(members(flats, number, names))
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
