"""Counts what saves of an unchanged state cost: plans, pickled bytes, memory, collectives."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.flash.trainer.planner import Planner


def counted(flash: Any, first: int, saves: int) -> dict[str, Any]:
    """Save so often, beginning with step `first`, and return what it took.

    The first save and what it plans are not counted as the rest, but for its plan.
    """
    plans, pickled, made = list[int](), list[int](), list[int]()

    class Made(TorchDispatchMode):
        """Takes note of tensors that are no views."""

        def __torch_dispatch__(
            self, function: Any, _: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found = function(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor) and function._schema.returns[0].alias_info is None:
                made.append(found.nbytes)
            return found

    def noting(real: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            note(*args)
            return real(*args, **kwargs)

        return call

    def of_pickle(value: Any, *_: Any) -> None:
        pickled.append(sum(map(_bytes_of, _leaves(value))))

    def of_plan(*_: Any) -> None:
        plans.append(1)

    with (
        patch.object(torch, "save", noting(torch.save, of_pickle)),
        patch.object(Planner, "plan", noting(Planner.plan, of_plan)),
    ):
        flash.save(first, durable=False)
        world: Any = dist.group.WORLD
        met = world._get_sequence_number_for_group()
        pickled.clear()
        tracemalloc.start()
        tracemalloc.reset_peak()
        with cast("Any", Made)():
            for step in range(first + 1, first + saves):
                flash.save(step, durable=False)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    collectives = world._get_sequence_number_for_group() - met
    dist.barrier()
    return {
        "plans": len(plans),
        "pickled": max(pickled, default=0),
        "made": max(made, default=0),
        "peak": peak,
        "collectives": collectives,
        "a barrier": world._get_sequence_number_for_group() - met - collectives,
    }


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for one in value.values() for leaf in _leaves(one)]
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in _leaves(one)]
    return [value]


def _bytes_of(leaf: Any) -> int:
    return int(getattr(leaf, "nbytes", 0))
