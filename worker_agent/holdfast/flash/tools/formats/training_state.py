"""The parts of a training state in what a script of torch has saved: model, optimizer, extras.

Belongs here: which key of the saved mapping is which part, the names of parameters that an
optimizer knows by number, and the names that a Checkpointer gives what is below a part.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.tools.formats.foreign import Checkpoint, ForeignError, ForeignTensor
from holdfast.flash.tools.formats.pickles import plain, replaced
from holdfast.flash.trainer.leaves import OWN_BUFFERS

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]

PART: Final = re.compile(rf"model|optimizer|extra|{OWN_BUFFERS}|rank_\d+")
"""First keys of a training state."""
FRAMEWORK: Final = re.compile(r"deepspeed|megatron")
"""First keys of what one framework alone knows."""
_DEEP: Final = len(("state", "parameter", "entry"))


def walk(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield each tensor or value as a Checkpointer would save it, with its keys."""
    if is_leaf(path) or not isinstance(value, Mapping | list):
        yield path, value
        return
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, below in pairs:
        yield from walk((*path, key), below)


def is_leaf(path: Path) -> bool:
    """Return True if a path is saved whole: an extra, an optimizer's entry, a module's state."""
    match path:
        case ():
            return False
        case ("model", *names):
            return bool(names) and str(names[-1]).endswith("_extra_state")
        case ("buffers", *_):
            return False
        case ("optimizer", *keys):
            # One optimizer: ("state", parameter, entry). Several: their name stands before.
            return len(keys) >= _DEEP and keys[-_DEEP] in ("state", "param_groups")
        case _:
            return len(path) == len(("extra", "name"))


def is_tensor_place(path: Path) -> bool:
    """Return True if a tensor at a path is stored as a tensor; elsewhere it is part of a value."""
    return path[0] in ("model", "optimizer", OWN_BUFFERS)


_MODELS: Final = ("model", "model_state_dict", "state_dict")
_OPTIMIZERS: Final = ("optimizer", "optimizer_state_dict", "optim", "optimizer_states")
"""Keys that scripts use, the first one that is there counts."""
_STEPS: Final = ("step", "global_step", "iteration")
_WRAPPERS: Final = ("module.", "_orig_mod.")
"""Prefixes of DDP and torch.compile, which a Checkpointer leaves out too."""
_OF_BATCH_NORM: Final = ("running_mean", "running_var", "num_batches_tracked")
_FLAT: Final = ("state.", "param_groups.")
"""Begin the keys of an optimizer's state that torch has flattened."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of a saved mapping that hold the parts, as a user named them; empty: found by name."""

    model: str = ""
    optimizer: str = ""


BY_NAME: Final = Keys()


def add_keys(parser: ArgumentParser) -> None:
    """Add the options that name the keys."""
    parser.add_argument("--model", default="", metavar="KEY")
    parser.add_argument("--optimizer", default="", metavar="KEY")


def keys_of(options: Namespace) -> Keys:
    """Return the keys that a command line names."""
    return Keys(options.model, options.optimizer)


@dataclass(slots=True)
class StateParts:
    """A state with the first keys of a training state."""

    state: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def of_script(found: Checkpoint, saved: Mapping[Any, Any], keys: Keys) -> Checkpoint:
    """Return a checkpoint with the tensors and values of what a script saved.

    saved: its tensors are `ForeignTensor`, its objects `Opaque`. Raises `ForeignError`.
    """
    parts = arrange(found.place, saved, keys)
    left, tensors, values = list[str](), list[ForeignTensor](), dict[Path, Any]()
    if isinstance(extra := parts.state.get("extra"), Mapping):
        parts.state["extra"] = _without_objects(extra, "extra", left)
    for path, value in walk((), parts.state):
        if isinstance(value, ForeignTensor) and is_tensor_place(path):
            tensors.append(replace(value, path=path))
        elif plain(value, ForeignTensor):
            values[path] = replaced(value, ForeignTensor, partial(_loaded, path))
        else:
            name = ".".join(map(str, path))
            raise ForeignError(f"{found.place}: {name} has objects that are no data")
    extras = {str(path[1]): one for path, one in values.items() if path[0] == "extra"}
    return replace(
        found,
        tensors=tuple(tensors),
        values=values,
        step=_step_in(extras),
        notes=(*parts.notes, *_left_out(left)),
    )


def _loaded(path: Path, tensor: ForeignTensor) -> torch.Tensor:
    return replace(tensor, path=path).load()


def arrange(place: str, saved: Mapping[Any, Any], keys: Keys) -> StateParts:
    """Return the parts of a saved mapping; raises `ForeignError` if none is the model.

    What is no part is an extra under its key. place: for errors.
    """
    rest, parts = dict(saved), StateParts({})
    optimizer = _taken(place, rest, "optimizer", keys.optimizer, _OPTIMIZERS, _is_optimizer)
    model = _taken(place, rest, "model", keys.model, _MODELS, _has_tensor)
    if model is None:
        model = _bare(place, rest, others=optimizer is not None)
    parts.state["model"] = model = _unwrapped(model, parts.notes)
    if optimizer is not None:
        parts.state["optimizer"] = _named(_nested(optimizer), model, parts.notes)
    _keep(place, rest, parts)
    return parts


def _taken(
    place: str,
    rest: dict[Any, Any],
    what: str,
    asked: str,
    known: Sequence[str],
    fits: Callable[[Any], bool],
) -> Mapping[Any, Any] | None:
    """Take a part out of the rest; None: it has none. Raises `ForeignError` if one was asked."""
    for key in (asked,) if asked else known:
        value = _unlisted(rest.get(key))
        if isinstance(value, Mapping) and fits(value):
            del rest[key]
            return value
    if asked:
        there = [str(key) for key, value in rest.items() if isinstance(value, Mapping)]
        raise ForeignError(
            f"--{what} {asked}: {place} has no state_dict of {what} there; its keys with a mapping "
            f"are {', '.join(there[:10]) or 'none'}"
        )
    return None


def _unlisted(value: Any) -> Any:
    """Return the only entry of a list: some trainers save a list of models, or of optimizers."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _is_optimizer(value: Any) -> bool:
    return "param_groups" in value or "state" in value or _is_flat(value) or not value


def _is_flat(value: Mapping[Any, Any]) -> bool:
    return bool(value) and all(str(key).startswith(_FLAT) for key in value)


def _has_tensor(value: Any, *, scalars: bool = True) -> bool:
    """Return True if a nested mapping has a tensor."""
    if isinstance(value, Mapping):
        return any(_has_tensor(one, scalars=scalars) for one in value.values())
    return isinstance(value, ForeignTensor) and (scalars or bool(value.shape))


def _bare(place: str, rest: dict[Any, Any], *, others: bool) -> Mapping[Any, Any]:
    """Take the model out of a mapping that has it at the top: its tensors are the weights.

    Beside a mapping that may be the model, tensors are weights if one has a module in its name: one
    alone may be a state of a random generator.
    """
    names = [key for key, value in rest.items() if isinstance(value, ForeignTensor)]
    nested = [key for key, value in rest.items() if _may_be_model(key, _unlisted(value))]
    if nested and not any("." in str(name) for name in names):
        names = []
        if not others and len(nested) == len(rest):
            names = nested  # modules by name
    if not names and (nested or not any(_known(key) for key in rest)):
        raise ForeignError(
            f"{place} has no model under {', '.join(_MODELS)}: name its key with --model KEY, one "
            f"of {', '.join(map(str, nested[:10])) or 'none: it holds no tensor'}"
        )
    names += [key for key in rest if str(key).endswith("_extra_state")]
    return {key: rest.pop(key) for key in dict.fromkeys(names)}


def _may_be_model(key: Any, value: Any) -> bool:
    """Return True if a value has weights: tensors, no scalars, of no optimizer and no part."""
    return (
        isinstance(value, Mapping)
        and not _known(key)
        and "param_groups" not in value
        and _has_tensor(value, scalars=False)
    )


def _known(key: Any) -> bool:
    return any(one.fullmatch(str(key)) for one in (PART, FRAMEWORK))


def _unwrapped(model: Mapping[Any, Any], notes: list[str]) -> Mapping[Any, Any]:
    for prefix in _WRAPPERS:
        if model and all(str(key).startswith(prefix) for key in model):
            notes.append(f"{prefix} before each of the model's names is left out")
            return _unwrapped(
                {str(key).removeprefix(prefix): one for key, one in model.items()}, notes
            )
    return model


def _keep(place: str, rest: dict[Any, Any], parts: StateParts) -> None:
    """Keep what is a part already, and the rest as extras."""
    extra = rest.pop("extra", {})
    own = [key for key in rest if _known(key) and key not in parts.state]
    parts.state |= {key: rest.pop(key) for key in own}
    if both := sorted(str(key) for key in rest if isinstance(extra, Mapping) and key in extra):
        raise ForeignError(f"{place} has {both[0]!r} beside extra and in it: which one is it?")
    if rest:
        names = sorted(map(str, rest))
        parts.notes.append(f"extras: {', '.join(names)}; a Checkpointer's extra= names them so")
        extra = {**_mapped(extra), **{str(key): value for key, value in rest.items()}}
    if extra:
        parts.state["extra"] = _mapped(extra)


def _mapped(extra: Any) -> Mapping[Any, Any]:
    """Return extras by name: what a script saved as `extra` and is no mapping is one itself."""
    if isinstance(extra, Mapping):
        return extra
    return {} if extra is None else {"extra": extra}


def _nested(optimizer: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return an optimizer's state with names as keys, where torch has flattened it.

    Parameters with equal settings are a group.
    """
    if not _is_flat(optimizer):
        return optimizer
    state: dict[str, dict[str, Any]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for key, value in optimizer.items():
        begin, _, rest = str(key).partition(".")
        name, _, entry = rest.rpartition(".")
        (state if begin == "state" else settings).setdefault(name, {})[entry] = value
    groups: dict[str, dict[str, Any]] = {}
    for name, one in settings.items():
        group = groups.setdefault(repr(sorted(one.items())), {**one, "params": []})
        group["params"].append(name)
    return {"state": state, "param_groups": list(groups.values())}


def _named(
    optimizer: Mapping[Any, Any], model: Mapping[Any, Any], notes: list[str]
) -> Mapping[Any, Any]:
    """Return an optimizer's state with names of parameters in the place of their numbers."""
    groups, state = optimizer.get("param_groups"), optimizer.get("state")
    if not isinstance(groups, list) or not isinstance(state, Mapping):
        return optimizer
    params = [list(group.get("params", ())) for group in groups]
    numbers = [number for group in params for number in group]
    if not numbers or not all(isinstance(number, int) for number in numbers):
        return optimizer
    names = {number: _bare_name(str(name), model) for number, name in _told(groups).items()}
    if len(names) < len(numbers) or not all(name in model for name in names.values()):
        shapes = {number: _shape(state.get(number, {})) for number in numbers}
        found = names_of(params, shapes, _candidates(model))
        if isinstance(found, str):
            notes.append(f"the optimizer's parameters have numbers, and {found}: {_SAVE_NAMES}")
            return optimizer
        notes.append(
            "the optimizer's parameters have numbers: they got names of the model's, by order and "
            "shape"
        )
        names = found
    return {
        **optimizer,
        "state": {names.get(number, number): one for number, one in state.items()},
        "param_groups": [
            {**group, "params": [names[number] for number in own]}
            for group, own in zip(groups, params, strict=True)
        ],
    }


_SAVE_NAMES: Final = (
    "save get_state_dict(model, optimizer) of torch.distributed.checkpoint.state_dict, which has "
    "names, or convert with --model-only"
)


def _bare_name(name: str, model: Mapping[Any, Any]) -> str:
    """Return a parameter's name without the wrappers that the model's names have lost."""
    while name not in model and (prefix := next(filter(name.startswith, _WRAPPERS), "")):
        name = name.removeprefix(prefix)
    return name


def _told(groups: Sequence[Mapping[Any, Any]]) -> dict[int, str]:
    """Return the names that torch keeps in the groups, of optimizers made with named_parameters."""
    found: dict[int, str] = {}
    for group in groups:
        found |= zip(group.get("params", ()), group.get("param_names") or (), strict=False)
    return found


def _shape(state: Mapping[Any, Any]) -> Shape | None:
    """Return the shape of a parameter by its state; None: nothing there tells it."""
    tensors = (one for key, one in state.items() if key != "step")
    shapes = {one.shape for one in tensors if isinstance(one, ForeignTensor)}
    return shapes.pop() if len(shapes) == 1 else None


def _candidates(model: Mapping[Any, Any]) -> dict[str, Shape]:
    return {
        str(name): value.shape
        for name, value in model.items()
        if isinstance(value, ForeignTensor) and not str(name).endswith(_OF_BATCH_NORM)
    }


def names_of(
    groups: Sequence[Sequence[int]], shapes: Mapping[int, Shape | None], model: Mapping[str, Shape]
) -> dict[int, str] | str:
    """Return the name of each number, or the reason why one cannot be told.

    A group has its parameters in the order of the model: the usual call gives it
    `model.parameters()`, or those of some shapes. So numbers of one shape in one group are the
    model's tensors of that shape in order, if there are as many.
    """
    numbers = [number for group in groups for number in group]
    if len(groups) == 1 and len(numbers) == len(model):
        fits = zip(numbers, model.items(), strict=True)
        if all(shapes[number] in (None, shape) for number, (_, shape) in fits):
            return dict(zip(numbers, model, strict=True))
    found: dict[int, str] = {}
    of_group = {number: at for at, group in enumerate(groups) for number in group}
    for number in numbers:
        shape = shapes[number]
        own = [one for one in numbers if shapes[one] == shape]
        names = [name for name, one in model.items() if one == shape]
        if shape is None or len(own) != len(names) or len({of_group[one] for one in own}) > 1:
            what = "no shape" if shape is None else f"shape {shape}"
            return f"{len(own)} of them of {what} can be any of {len(names)} of the model's"
        found[number] = names[own.index(number)]
    return found


def _step_in(extras: Mapping[str, Any]) -> int | None:
    """Return the step's number among extras: `step` and the like, or torchtitan's `train_state`."""
    inner = extras.get("train_state")
    for held in (extras, inner if isinstance(inner, Mapping) else {}):
        for key in _STEPS:
            value: Any = held.get(key)
            if getattr(value, "shape", None) == ():
                value = value.item()
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _without_objects(value: Mapping[Any, Any], name: str, left: list[str]) -> dict[Any, Any]:
    """Return nested data without the entries that have objects; their names go to `left`."""
    kept = {}
    for key, one in value.items():
        if isinstance(one, Mapping):
            kept[key] = _without_objects(one, f"{name}.{key}", left)
        elif plain(one, ForeignTensor):
            kept[key] = one
        else:
            left.append(f"{name}.{key}")
    return kept


def _left_out(left: Sequence[str]) -> list[str]:
    """Return the note on entries that were left out."""
    more = f" and {len(left) - 10} more" if len(left) > 10 else ""
    return [f"left out, for they are objects: {', '.join(left[:10])}{more}"] if left else []
