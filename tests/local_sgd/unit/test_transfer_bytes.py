"""A unit's anchors and outer state as bytes: what one replica writes, another reads."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.sync.transfer_bytes import (
    bytes_of,
    count_of,
    fill,
    form_of,
    has_outer_state,
)
from holdfast.local_sgd.sync.units import Outer, Unit

OUTERS: dict[str, Any] = {
    "averaging": None,
    "nesterov": functools.partial(torch.optim.SGD, lr=0.7, momentum=0.8, nesterov=True),
    "no momentum": functools.partial(torch.optim.SGD, lr=0.7),
    "adam": functools.partial(torch.optim.Adam, lr=0.1),
}


def unit_of(outer: Any, value: float, steps: int) -> Unit:
    """Return a unit of unlike dtypes and an empty tensor, after some outer steps."""
    tensors = (
        torch.full((3,), value, dtype=torch.bfloat16),
        torch.full((2, 2), value),
        torch.empty(0),
    )
    unit = Unit("one", lambda: tensors, Outer(outer))
    unit.take_anchors()
    for _ in range(steps):
        unit.anchors.step(torch.linspace(0.1, 0.7, 7) * value)
    return unit


def state_of(unit: Unit) -> list[Any]:
    """Return all that a unit has, to compare."""
    optimizer: Any = unit.anchors.optimizer
    found: list[Any] = [one.tolist() for one in unit.anchors.values]
    for anchor in unit.anchors.values if optimizer else ():
        kept = optimizer.state.get(anchor, {})
        found.append(
            {key: getattr(one, "tolist", lambda one=one: one)() for key, one in kept.items()}
        )
    return found


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("name", OUTERS)
def test_a_fresh_unit_takes_every_bit(name: str, steps: int) -> None:
    """Values, momentum, step counts and changed settings, whatever the outer optimizer keeps."""
    giver, taker = unit_of(OUTERS[name], 1.5, steps), unit_of(OUTERS[name], -3.0, 0)
    if giver.anchors.optimizer is not None:
        giver.anchors.optimizer.param_groups[0]["lr"] = 0.125
    sent = bytes_of(giver)
    assert count_of(taker, outer_state=has_outer_state(giver)) == sent.numel()
    fill(taker, sent)
    assert state_of(taker) == state_of(giver)
    if taker.anchors.optimizer is not None:
        assert taker.anchors.optimizer.param_groups[0]["lr"] == 0.125
    for unit in (giver, taker):  # and both go on alike
        unit.anchors.step(torch.linspace(-1, 1, 7))
    assert state_of(taker) == state_of(giver)


def test_the_form_tells_unlike_models() -> None:
    """Names, shapes and dtypes count, values do not."""
    one, other = unit_of(None, 1.0, 0), unit_of(None, 2.0, 0)
    assert form_of([one]) == form_of([other])
    wider = Unit("one", lambda: (torch.zeros(4),))
    assert form_of([one]) != form_of([wider])


def test_an_outer_optimizer_that_keeps_objects_is_refused_by_name() -> None:
    """No replica can be given what has no bytes of its own."""
    unit = unit_of(OUTERS["nesterov"], 1.0, 1)
    assert unit.anchors.optimizer is not None
    unit.anchors.optimizer.state[unit.anchors.values[0]]["history"] = ["a list"]
    with pytest.raises(LocalSGDError, match="outer_optim_class=SGD: its state 'history' is a list"):
        bytes_of(unit)
