"""What of a training state is saved: tensors and other values, each under its name.

Collects without changing anything: optimizer state is never forced into existence, and the
sources of FSDP parameters are the sharded ones, whatever the module shows at the moment. Names are
those of torch's `get_state_dict`, so that `dcp.load` finds what it expects. Layout is `planning`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from holdfast.flash.optimizers import classes_of
from holdfast.flash.table import Path

if TYPE_CHECKING:
    import torch
    from torch import nn

_WRAPPERS: Final = ("module", "_orig_mod", "_checkpoint_wrapped_module")
"""Names that DDP, torch.compile and activation checkpointing put into a parameter's name."""


class StateError(Exception):
    """The state holds something that cannot be saved exactly."""


@runtime_checkable
class Stateful(Protocol):
    """What schedulers, data loaders and torch's own Stateful have in common."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take it back."""


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A tensor, and where it will be found again without a walk."""

    name: str
    path: Path
    holder: Mapping[Any, Any]
    key: Any
    tensor: torch.Tensor
    trained: bool = False
    """It changes in `optimizer.step()` only."""


@dataclass(frozen=True, slots=True)
class ValueLeaf:
    """A value that is no tensor, read anew at each save."""

    name: str
    path: Path
    read: Callable[[], Any]
    own: bool = False
    """Each rank has its own."""


@dataclass(slots=True)
class Leaves:
    """Everything that is saved, and what a change of the structure would change."""

    tensors: list[TensorLeaf] = field(default_factory=list)
    values: list[ValueLeaf] = field(default_factory=list)
    counts: list[tuple[Any, int]] = field(default_factory=list)
    """Containers and their lengths."""
    links: list[tuple[Mapping[Any, Any], Any, Any]] = field(default_factory=list)
    """Where each of them was found: holder, key, and what must still be there. One that is replaced
    as a whole would go on being read, and nobody would change it any more."""
    optimizers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The classes of each (`optimizers.classes_of`), by the beginning of its names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a `Checkpointer` was given."""

    models: Mapping[str, nn.Module]
    """By prefix: "" for a single one, else its number."""
    optimizers: Mapping[str, torch.optim.Optimizer]
    extra: Mapping[str, Any]
    per_rank: Mapping[str, Any]


def collect(parts: Parts, rank: int) -> Leaves:
    """Return all leaves; raises `StateError` for what cannot be saved."""
    leaves = Leaves()
    trained = {
        id(parameter)
        for optimizer in parts.optimizers.values()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for prefix, model in parts.models.items():
        _model(leaves, ("model", prefix) if prefix else ("model",), model, trained)
    for prefix, optimizer in parts.optimizers.items():
        path = ("optimizer", prefix) if prefix else ("optimizer",)
        leaves.optimizers[".".join(path)] = classes_of(optimizer)
        _optimizer(leaves, path, optimizer, parameter_names(parts, prefix))
    for source, first, own in (
        (parts.extra, "extra", False),
        (parts.per_rank, f"rank_{rank}", True),
    ):
        leaves.counts.append((_AtLeast(source), len(source)))
        for key in source:
            if not isinstance(key, str):
                raise StateError(f"{first} has the name {key!r}: expected text")
            path, read = (first, key), _reader(source, key)
            leaves.values.append(ValueLeaf(".".join(path), path, read, own=own))
    _check_names(leaves)
    return leaves


class _AtLeast:
    """Counts what came to a mapping; of a key that went its reader tells."""

    def __init__(self, source: Mapping[str, Any]) -> None:
        self._source, self._least = source, len(source)

    def __len__(self) -> int:
        return max(self._least, len(self._source))


def _check_names(leaves: Leaves) -> None:
    """Refuse names that two things have, and such as are no text for a file."""
    names = set[str]()
    for name in [leaf.name for leaf in leaves.tensors] + [leaf.name for leaf in leaves.values]:
        if name in names:
            raise StateError(f"two things are named {name!r}: rename one of them")
        if not name.isascii():
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise StateError(f"the name {name!r} is no text: {error}") from error
        names.add(name)


def _reader(source: Mapping[str, Any], key: str) -> Callable[[], Any]:
    def read() -> Any:
        if key not in source:
            raise StateError(f"{key!r} is no longer in what was given to the Checkpointer")
        value = source[key]  # each time: whoever starts anew may put another object there
        return value.state_dict() if isinstance(value, Stateful) else value

    return read


def clean(name: str) -> str:
    """Return a parameter's name without what wrappers have added to it."""
    parts = name.split(".")
    return ".".join(part for part in parts if part not in _WRAPPERS[1:])


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


def parameter_names(parts: Parts, prefix: str) -> dict[int, str]:
    """Return id → name of every parameter an optimizer may hold; the first name if it has two.

    Those of its own model have no prefix, unless two parameters had one name then.
    """
    names = _names(parts, prefix)
    return names if len(set(names.values())) == len(names) else _names(parts, None)


def _names(parts: Parts, own: str | None) -> dict[int, str]:
    names: dict[int, str] = {}
    for number, model in parts.models.items():
        begin = f"{number}." if number and number != own else ""
        for name, holder, key in parameters(model):
            names.setdefault(id(holder[key]), begin + name)
    return names


def parameters(model: nn.Module) -> Iterator[tuple[str, MutableMapping[str, Any], str]]:
    """Return name, holder and key of every parameter; of FSDP's the sharded one."""
    sharded = _sharded(model)
    for name, module in unwrap(model).named_modules(remove_duplicate=False):
        held = module._parameters  # noqa: SLF001 - no public way to the holder
        for key in [key for key, value in held.items() if value is not None]:
            full = clean(f"{name}.{key}" if name else key)
            fsdp = sharded.get((id(module), key))
            if fsdp is None:
                yield full, held, key
            else:
                yield full, vars(fsdp), "sharded_param"


def _sharded(model: nn.Module) -> dict[tuple[int, str], Any]:
    """Return FSDP2's record of each parameter, by its module and name there."""
    found: dict[tuple[int, str], Any] = {}
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", lambda: None)()
        for group in _groups(state):
            for record in group.fsdp_params:
                info = record._module_info  # noqa: SLF001
                found[id(info.module), info.param_name] = record
                for shared, name in zip(info.shared_modules, info.shared_param_names, strict=True):
                    found[id(shared), name] = record
    return found


def _groups(state: Any) -> list[Any]:
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    one = getattr(state, "_fsdp_param_group", None)
    return [] if one is None else [one]


def _model(leaves: Leaves, path: tuple[str, ...], model: nn.Module, trained: set[int]) -> None:
    _refuse_scripted(model)
    names = set()
    for name, holder, key in parameters(model):
        names.add(name)
        full = (*path, name)
        tensor = holder[key]
        leaves.tensors.append(
            TensorLeaf(".".join(full), full, holder, key, tensor, trained=id(tensor) in trained)
        )
    for name, module in unwrap(model).named_modules(remove_duplicate=False):
        leaves.links += [
            (module._modules, key, child)  # noqa: SLF001
            for key, child in module._modules.items()  # noqa: SLF001
        ]
        leaves.counts += [
            (module._parameters, len(module._parameters)),  # noqa: SLF001
            (module._buffers, len(module._buffers)),  # noqa: SLF001
            (module._modules, len(module._modules)),  # noqa: SLF001
            (module._non_persistent_buffers_set, len(module._non_persistent_buffers_set)),  # noqa: SLF001
        ]
        leaves.links += [  # it may become a tensor, under a name that is counted already
            (held, key, None)
            for held in (module._parameters, module._buffers)  # noqa: SLF001
            for key, value in held.items()
            if value is None
        ]
        for key, value in module._buffers.items():  # noqa: SLF001
            if value is None or key in module._non_persistent_buffers_set:  # noqa: SLF001
                continue
            full = (*path, clean(f"{name}.{key}" if name else key))
            names.add(full[-1])
            leaves.tensors.append(
                TensorLeaf(".".join(full), full, module._buffers, key, value)  # noqa: SLF001
            )
        if type(module).get_extra_state is not _plain_extra_state():
            full = (*path, clean(f"{name}._extra_state" if name else "_extra_state"))
            names.add(full[-1])
            leaves.values.append(ValueLeaf(".".join(full), full, module.get_extra_state))
    _compare(model, names)


def _refuse_scripted(model: nn.Module) -> None:
    import torch

    for name, module in unwrap(model).named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise StateError(
                f"{name or 'the model'} is scripted, and does not show where it keeps its tensors: "
                "pass the module that torch.jit.script was called with, whose parameters are these"
            )


def _plain_extra_state() -> Any:
    from torch import nn

    return nn.Module.get_extra_state


def _compare(model: nn.Module, names: set[str]) -> None:
    """Refuse a module whose own state_dict has other names: something would be missing."""
    shown = {clean(name) for name in unwrap(model).state_dict()}
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

    _refuse_hidden(optimizer, ".".join(path))
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise StateError(
                    f"{type(optimizer).__name__} holds a parameter of shape "
                    f"{tuple(parameter.shape)} that is in no given model: pass its model too"
                )
    leaves.counts += [
        (optimizer.state, len(optimizer.state)),
        (optimizer.param_groups, len(optimizer.param_groups)),
    ]
    held = vars(optimizer)
    leaves.links += [(held, key, held[key]) for key in ("state", "param_groups") if key in held]
    leaves.links += [(optimizer.state, one, state) for one, state in optimizer.state.items()]
    # By name: a restored optimizer has its state in another order, and shall have the same layout.
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
            name = ".".join(map(str, full))
            if isinstance(value, torch.Tensor):
                leaves.tensors.append(TensorLeaf(name, full, state, key, value, trained=True))
            else:
                read = _item_of(state, key)
                leaves.values.append(ValueLeaf(name, full, read))


def _refuse_hidden(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Refuse an optimizer that has more than its `state` and `param_groups` show.

    Only who has a `state_dict` of its own can: ZeroRedundancyOptimizer keeps its moments elsewhere,
    and one that is saved without them goes on with wrong steps.
    """
    from torch.optim import Optimizer

    if type(optimizer).state_dict is Optimizer.state_dict:
        return
    its, count = f"{name}: {type(optimizer).__name__}.state_dict()", len(optimizer.state)
    remedy = "Pass an optimizer that has all in its state and param_groups, as torch's plain ones"
    try:
        shown = optimizer.state_dict()
    except Exception as error:  # whatever its own code raises
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
        name = ".".join(map(str, full))
        if isinstance(value, torch.Tensor):
            leaves.tensors.append(TensorLeaf(name, full, group, key, value))
        elif key == "params":
            held = [names[id(parameter)] for parameter in value]
            leaves.values.append(ValueLeaf(name, full, _constant(held)))
        else:
            leaves.values.append(ValueLeaf(name, full, _item_of(group, key)))


def _key(key: Any, where: str) -> str | int:
    if type(key) not in (str, int):
        raise StateError(f"{where} has the key {key!r}: name it with text or a whole number")
    found: str | int = key
    return found


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _item_of(state: Mapping[Any, Any], key: Any) -> Callable[[], Any]:
    return lambda: state[key]
