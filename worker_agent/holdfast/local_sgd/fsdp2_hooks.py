"""Hooks that `LocalSGD` sets on modules under FSDP2.

Belongs here: where FSDP2 calls, and what torch.compile leaves out. Does not belong here: what
happens then (`fsdp2`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.fsdp2_units import ShardedUnit

if TYPE_CHECKING:
    import torch


def hook_modules(
    units: Sequence[ShardedUnit],
    before_forward: Callable[[int | None], None],
    average: Callable[[torch.Tensor], None],
) -> list[Any]:
    """Set the hooks of all modules; return the handles of those before a forward.

    Args:
        units: Frozen ones too.
        before_forward: Called with the number of a unit among those that are trained, None for a
            frozen one, before FSDP2 gathers it.
        average: Called with the gradient of a unit, reduced over the replica.
    """
    handles, numbers = list[Any](), dict[int, int]()
    for unit in units:
        if unit.trained:
            numbers[id(unit)] = len(numbers)
    for unit in units:
        for module in unit.modules:
            before = _Before(before_forward, numbers.get(id(unit)))
            handles.append(module.register_forward_pre_hook(before, prepend=True))
            _hook_gradients(unit.name, module, average)
    return handles


def unhook_gradients(units: Sequence[ShardedUnit]) -> None:
    """Leave gradients as they are from now on."""
    for unit in units:
        for module in unit.modules:
            if hasattr(module, "set_all_reduce_hook"):  # FSDP1 has none
                module.set_all_reduce_hook(_nothing)


class _Before:
    """The pre-hook of one module; torch.compile leaves it out of its graphs."""

    def __init__(self, before_forward: Callable[[int | None], None], number: int | None) -> None:
        self._number = number
        self._call = _uncompiled(before_forward)

    def __call__(self, *_: Any) -> None:
        self._call(self._number)


def _hook_gradients(name: str, module: Any, average: Callable[[torch.Tensor], None]) -> None:
    if not hasattr(module, "set_all_reduce_hook"):
        return  # FSDP1 has none, and averages by itself
    try:
        module.set_all_reduce_hook(average)
    except ValueError as error:  # several meshes in one unit
        raise LocalSGDError(
            f"unit {name} has parameters on several meshes, where FSDP2 takes no all-reduce "
            "hook: shard them all over the mesh's second dimension"
        ) from error


def _uncompiled(call: Any) -> Any:
    import torch

    return torch.compiler.disable(call)


def _nothing(_: Any) -> None:
    """Leave a gradient as it is."""
