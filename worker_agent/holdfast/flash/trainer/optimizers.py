"""Compares a stored optimizer state with the optimizer that is to load it.

It compares the class, if that was stored, and the settings of the groups, which every optimizer
has. The state's own keys prove nothing: they are unknown before a first step, and Adamax and Adam
both have an `exp_avg`. A state that fits is loaded with all its values: a learning rate continues
as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

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
_MOST_WRAPPERS: Final = 8


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
