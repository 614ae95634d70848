"""Megatron's `OptimizerParamScheduler`: what its `load_state_dict` refuses, told before a load.

Its load compares settings by assertions, one after another, while it takes them; and it adds the
stored steps to those that it has done. Does not belong here: other objects of a script, which are
loaded as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from types import SimpleNamespace
from typing import Any

from holdfast.flash.trainer.leaves import Stateful


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
