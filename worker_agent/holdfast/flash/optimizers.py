"""Tells whether a stored optimizer state is of the optimizer that is to have it.

By its class, where that was stored, and by the settings of its groups, which every optimizer has.
The state's own keys tell nothing: they are not known before a first step, and Adamax and Adam both
have an `exp_avg`. What fits is loaded whatever its values are: a learning rate goes on as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

OF_THE_CLASS: Final = frozenset(("decoupled_weight_decay",))
"""Settings that are not restored: this one tells AdamW from Adam, and the job says which it is."""
_OF_SCHEDULERS: Final = frozenset(
    ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr")
)
"""What torch's schedulers add to a group, whatever optimizer it is of."""
_FORMING: Final = ("amsgrad", "centered")
"""Settings that decide which tensors are kept of a parameter, and that nothing changes on the way:
a momentum does too, and schedulers change it."""
_ALIKE: Final = {"AdamW": "Adam"}
"""Classes whose state is another's; not every torch derives the one from the other."""
_MOST_WRAPPERS: Final = 8


def classes_of(optimizer: Any) -> tuple[str, ...]:
    """Return the names of an optimizer's class and of those it is derived from, nearest first.

    Of one that wraps another (`optimizer.optimizer`, as accelerate has it) those of the inner one.
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
    """Return why the class is another one; empty: it is the same or akin, or is not known.

    Akin is who is derived from the other, or from the same class of torch: such a one keeps what
    its base keeps. Modules do not count, for a script that moves would lose its state.
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
    """Return why the settings are another optimizer's; empty: they are not, as far as is seen.

    Each lacks some of the other's. One that only has more is of another release of torch, say.
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
    """Return which setting has the optimizer keep other tensors than were saved; empty: none.

    saved, live: the settings of each group, in order.
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
