"""Collects a training state: tensors and other values, each under its name.

It changes nothing: it never forces optimizer state into existence, and reads FSDP's sharded
parameters, whatever the module shows at the moment. Names are those of torch's `get_state_dict`, so
that `dcp.load` finds them. Another framework's part of the state comes from its `Shards`. Does not
belong here: how a checkpoint fills the state (`torch_shards`), the layout (`planner`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from operator import getitem
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.trainer.leaves import (
    GlobalBox,
    Leaves,
    StateError,
    Stateful,
    TensorLeaf,
    ValueLeaf,
    constant,
    name_of,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

    from holdfast.flash.trainer.shards import Shards

_WRAPPERS: Final = ("module", "_orig_mod", "_checkpoint_wrapped_module")
"""Names that DDP, torch.compile and activation checkpointing add to a parameter's name."""
_MOST_WRAPPERS: Final = 8
Models = Mapping[str, "nn.Module"]
"""Models by prefix: "" for a single one, else its number."""
Optimizers = Mapping[str, "torch.optim.Optimizer"]
"""Optimizers by prefix, as `Models`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Arguments of a `Checkpointer`, by kind."""

    shards: Shards
    """State of the framework: weights, and what its optimizer keeps."""
    extra: Mapping[str, Any]
    per_rank: Mapping[str, Any]


def collect(parts: Parts, rank: int) -> Leaves:
    """Return all leaves; raises `StateError` for a value that cannot be saved."""
    leaves = Leaves()
    parts.shards.collect(leaves)
    for source, first, own in (
        (parts.extra, "extra", False),
        (parts.per_rank, f"rank_{rank}", True),
    ):
        leaves.counts.append((_AtLeast(source), len(source)))
        for key in source:
            if not isinstance(key, str):
                raise StateError(f"{first} has the name {key!r}: expected text")
            leaves.values.append(ValueLeaf((first, key), _reader(source, key), own=own))
    _check_names(leaves)
    return leaves


class _AtLeast:
    """Counts the keys of a mapping; a missing key is found by its reader."""

    def __init__(self, source: Mapping[str, Any]) -> None:
        self._source, self._least = source, len(source)

    def __len__(self) -> int:
        return max(self._least, len(self._source))


def _check_names(leaves: Leaves) -> None:
    """Refuse a name that two leaves have, and a name that is no text for a file.

    Boxes of one global tensor have one name.
    """
    names: dict[str, GlobalBox | None] = {}
    boxes = [(leaf.name, leaf.box) for leaf in leaves.tensors]
    for name, box in [*boxes, *((leaf.name, None) for leaf in leaves.values)]:
        if name in names and (box is None or names[name] is None):
            raise StateError(f"two things are named {name!r}: rename one of them")
        names[name] = box
        if not name.isascii():
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise StateError(f"the name {name!r} is no text: {error}") from error


def _reader(source: Mapping[str, Any], key: str) -> Callable[[], Any]:
    def read() -> Any:
        if key not in source:
            raise StateError(f"{key!r} is no longer in what was given to the Checkpointer")
        value = source[key]  # at each save: the script may have put another object there
        return value.state_dict() if isinstance(value, Stateful) else value

    return read


def path_of(first: str, prefix: str) -> tuple[str, ...]:
    """Return the first keys of a module or an optimizer."""
    return (first, prefix) if prefix else (first,)


def collect_torch(leaves: Leaves, models: Models, optimizers: Optimizers) -> None:
    """Add all leaves of modules and optimizers; raises `StateError`."""
    trained = {
        id(parameter)
        for optimizer in optimizers.values()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for prefix, model in models.items():
        _model(leaves, path_of("model", prefix), model, trained)
    for prefix, optimizer in optimizers.items():
        path = path_of("optimizer", prefix)
        leaves.optimizers[name_of(path)] = classes_of(optimizer)
        _optimizer(leaves, path, optimizer, parameter_names(models, prefix))


def classes_of(optimizer: Any) -> tuple[str, ...]:
    """Return the names of an optimizer's class and of its base classes, nearest first.

    For a wrapper (`optimizer.optimizer`, as in accelerate), those of the inner optimizer.
    """
    from torch.optim import Optimizer

    for _ in range(_MOST_WRAPPERS):
        inner = vars(optimizer).get("optimizer")
        if not isinstance(inner, Optimizer):
            break
        optimizer = inner
    return tuple(
        f"{kind.__module__}.{kind.__qualname__}"
        for kind in type(optimizer).__mro__
        if issubclass(kind, Optimizer) and kind is not Optimizer
    )


def clean(name: str) -> str:
    """Return a parameter's name without the parts that wrappers have added."""
    parts = name.split(".")
    return ".".join(part for part in parts if part not in _WRAPPERS[1:])


def _naming(model: nn.Module) -> Callable[[str], str]:
    """Return the function that cleans a module's names, also if DDP wraps only a part of it.

    A module of the user's may be called `module` too: it keeps its name.
    """
    from torch.nn.parallel import DistributedDataParallel

    wrapped = {
        clean(f"{name}.module" if name else "module")
        for name, part in model.named_modules(remove_duplicate=False)
        if isinstance(part, DistributedDataParallel)
    }
    if not wrapped:
        return clean

    def named(name: str) -> str:
        parts = clean(name).split(".")
        ends = range(1, len(parts) + 1)
        return ".".join(parts[end - 1] for end in ends if ".".join(parts[:end]) not in wrapped)

    return named


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside DDP and torch.compile."""
    from torch.nn.parallel import DistributedDataParallel

    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:  # noqa: SLF001 - what torch.compile leaves
            inner = model._modules["_orig_mod"]  # noqa: SLF001
            if inner is None:
                return model
            model = inner
        else:
            return model


def parameter_names(models: Models, prefix: str) -> dict[int, str]:
    """Return id → name of every parameter an optimizer may hold; the first name if it has two.

    Parameters of the optimizer's own model have no prefix, unless two would then have one name.
    """
    names = _names(models, prefix)
    return names if len(set(names.values())) == len(names) else _names(models, None)


def _names(models: Models, own: str | None) -> dict[int, str]:
    names: dict[int, str] = {}
    for number, model in models.items():
        begin = f"{number}." if number and number != own else ""
        for name, holder, key in parameters(model):
            names.setdefault(id(holder[key]), begin + name)
    return names


def parameters(model: nn.Module) -> Iterator[tuple[str, MutableMapping[str, Any], str]]:
    """Return name, holder and key of every parameter; the sharded one for FSDP."""
    sharded, model = _sharded(model), unwrap(model)
    named = _naming(model)
    for name, module in model.named_modules(remove_duplicate=False):
        held = module._parameters  # noqa: SLF001 - no public way to the holder
        for key in [key for key, value in held.items() if value is not None]:
            full = named(f"{name}.{key}" if name else key)
            fsdp = sharded.get((id(module), key))
            if fsdp is None:
                yield full, held, key
            else:
                yield full, vars(fsdp), "sharded_param"


def _sharded(model: nn.Module) -> dict[tuple[int, str], Any]:
    """Return FSDP2's record of each parameter, by its module and its name there."""
    found: dict[tuple[int, str], Any] = {}
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", lambda: None)()
        for group in fsdp_groups(state):
            for record in group.fsdp_params:
                info = record._module_info  # noqa: SLF001
                found[id(info.module), info.param_name] = record
                for shared, name in zip(info.shared_modules, info.shared_param_names, strict=True):
                    found[id(shared), name] = record
    return found


def fsdp_groups(state: Any) -> list[Any]:
    """Return the parameter groups of FSDP2's state of a module; none for None."""
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    one = getattr(state, "_fsdp_param_group", None)
    return [] if one is None else [one]


def _model(leaves: Leaves, path: tuple[str, ...], model: nn.Module, trained: set[int]) -> None:
    from torch import nn

    _refuse_scripted(model)
    begin = len(leaves.tensors), len(leaves.values)
    for name, holder, key in parameters(model):
        tensor, is_trained = holder[key], id(holder[key]) in trained
        leaves.tensors.append(TensorLeaf((*path, name), holder, key, tensor, trained=is_trained))
    named, synced = _naming(unwrap(model)), _synced(model)
    for prefix, module in unwrap(model).named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        held, buffers = module._parameters, module._buffers  # noqa: SLF001
        parts, unsaved = module._modules, module._non_persistent_buffers_set  # noqa: SLF001
        leaves.counts += [(one, len(one)) for one in (held, buffers, parts, unsaved)]
        leaves.links += [(parts, key, child) for key, child in parts.items()]
        for some in (held, buffers):  # it may become a tensor, under a name that is counted already
            leaves.links += [(some, key, None) for key, value in some.items() if value is None]
        leaves.tensors += [
            TensorLeaf(
                (*path, named(dot + key)),
                buffers,
                key,
                value,
                buffer=True,
                synced=id(value) in synced,
            )
            for key, value in buffers.items()
            if value is not None and key not in unsaved
        ]
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            extra = (*path, named(f"{dot}_extra_state"))
            leaves.values.append(ValueLeaf(extra, module.get_extra_state))
    paths = [leaf.path for leaf in leaves.tensors[begin[0] :]]
    paths += [leaf.path for leaf in leaves.values[begin[1] :]]
    _compare(unwrap(model), named, {str(path[-1]) for path in paths})


def _synced(model: nn.Module) -> set[int]:
    """Return the ids of the buffers that DDP overwrites with rank 0's before a forward pass."""
    from torch.nn.parallel import DistributedDataParallel

    return {
        id(buffer)
        for part in model.modules()
        if isinstance(part, DistributedDataParallel) and part.broadcast_buffers
        for name, buffer in part.module.named_buffers()
        if name not in part.parameters_to_ignore
    }


def _refuse_scripted(model: nn.Module) -> None:
    import torch

    for name, module in unwrap(model).named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise StateError(
                f"{name or 'the model'} is scripted, and does not show where it keeps its tensors: "
                "pass the module that torch.jit.script was called with, whose parameters are these"
            )


def _compare(model: nn.Module, named: Callable[[str], str], names: set[str]) -> None:
    """Refuse a module whose own state_dict has other names: a part would be missing."""
    shown = {named(name) for name in model.state_dict()}
    different = sorted(shown ^ names)
    if different:
        raise StateError(
            f"{type(model).__name__}.state_dict() has other names than its parameters and "
            f"buffers: {', '.join(different[:10])}. Pass the parts that have them, or the state "
            f"itself to holdfast.flash.dcp.async_save"
        )


def _optimizer(
    leaves: Leaves, path: tuple[str, ...], optimizer: torch.optim.Optimizer, names: dict[int, str]
) -> None:
    _refuse_hidden(optimizer, name_of(path))
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise StateError(
                    f"{type(optimizer).__name__} holds a parameter of shape "
                    f"{tuple(parameter.shape)} that is in no given model: pass its model too. If "
                    "load_state_dict(assign=True) or a conversion gave the model new parameters, "
                    "make the optimizer after it"
                )
    leaves.counts += [
        (optimizer.state, len(optimizer.state)),
        (optimizer.param_groups, len(optimizer.param_groups)),
    ]
    held = vars(optimizer)
    leaves.links += [(held, key, held[key]) for key in ("state", "param_groups") if key in held]
    leaves.links += [(optimizer.state, one, state) for one, state in optimizer.state.items()]
    # By name: a restored optimizer has another order, and must have the same layout.
    for one in optimizer.state:
        if id(one) not in names:
            raise StateError(
                f"the state of {type(optimizer).__name__} has an entry for a {type(one).__name__} "
                "that is no parameter of a given model: keep it in extra"
            )
    entries = {names[id(one)]: state for one, state in optimizer.state.items()}
    _entries(leaves, (*path, "state"), entries)
    for number, group in enumerate(optimizer.param_groups):
        _group(leaves, (*path, "param_groups", number), group, names)


def _entries(
    leaves: Leaves, path: tuple[str, ...], entries: Mapping[str, MutableMapping[Any, Any]]
) -> None:
    import torch

    for owner, state in sorted(entries.items()):
        leaves.counts.append((state, len(state)))
        for key, value in sorted(state.items(), key=lambda entry: str(entry[0])):
            full = (*path, owner, _key(key, f"the state of {owner}"))
            if isinstance(value, torch.Tensor):
                leaves.tensors.append(TensorLeaf(full, state, key, value, trained=True))
            else:
                leaves.values.append(ValueLeaf(full, partial(getitem, state, key)))


def _refuse_hidden(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Refuse an optimizer with more state than `state` and `param_groups` show.

    That needs a `state_dict` of its own. ZeroRedundancyOptimizer keeps its moments elsewhere: saved
    without them, it would continue with wrong steps.
    """
    from torch.optim import Optimizer

    if type(optimizer).state_dict is Optimizer.state_dict:
        return
    its, count = f"{name}: {type(optimizer).__name__}.state_dict()", len(optimizer.state)
    remedy = "Pass an optimizer that has all in its state and param_groups, as torch's plain ones"
    try:
        shown = optimizer.state_dict()
    except Exception as error:  # any error of the optimizer's own code
        raise StateError(f"{its} raised {error!r}. {remedy}") from error
    if more := sorted(map(str, set(shown) - {"state", "param_groups"})):
        raise StateError(f"{its} also has {', '.join(more)}. {remedy}")
    if len(shown.get("state", ())) != count:
        raise StateError(
            f"{its} has the state of {len(shown.get('state', ()))} parameters, its state of "
            f"{count}. {remedy}"
        )


def _group(
    leaves: Leaves, path: tuple[str | int, ...], group: dict[str, Any], names: dict[int, str]
) -> None:
    """Add a group's settings, each under its own name as torch has them."""
    import torch

    leaves.counts += [(group, len(group)), (group["params"], len(group["params"]))]
    for key, value in group.items():
        full = (*path, _key(key, f"param_groups[{path[-1]}]"))
        if isinstance(value, torch.Tensor):
            leaves.tensors.append(TensorLeaf(full, group, key, value))
        elif key == "params":
            held = [names[id(parameter)] for parameter in value]
            leaves.values.append(ValueLeaf(full, constant(held)))
        else:
            leaves.values.append(ValueLeaf(full, partial(getitem, group, key)))


def _key(key: Any, where: str) -> str | int:
    if type(key) not in (str, int):
        raise StateError(f"{where} has the key {key!r}: name it with text or a whole number")
    found: str | int = key
    return found
