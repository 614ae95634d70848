"""A small model with an optimizer, trained a step or two, saved and loaded; and what is equal."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import holdfast


def state_of(seed: int = 0, **optimizer: Any) -> tuple[Any, Any]:
    """Return the model of a seed and its optimizer; `kind`: a class of torch.optim."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    kind = optimizer.pop("kind", "AdamW")
    return model, getattr(torch.optim, kind)(model.parameters(), lr=0.1, **optimizer)


def train(model: Any, optimizer: Any, steps: int = 1) -> None:
    """Take steps on random input."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()


def opened(folder: Path | str | None, state: Any, **given: Any) -> holdfast.Checkpointer:
    """Return a `Checkpointer` of a (model, optimizer)."""
    return holdfast.Checkpointer(folder, model=state[0], optimizer=state[1], **given)


def save(folder: Path | str | None, step: int = 1, **given: Any) -> None:
    """Save a step with a `Checkpointer` of its own, made with these arguments."""
    with holdfast.Checkpointer(folder, **given) as flash:
        flash.save(step)


def load(folder: Path | str | None, *, partial: bool = False, **given: Any) -> int:
    """Load with a `Checkpointer` of its own; return the step."""
    with holdfast.Checkpointer(folder, **given) as flash:
        return flash.load(partial=partial)


def trained_state(seed: int = 0, **optimizer: Any) -> tuple[Any, Any]:
    """Return a model and its optimizer after a step."""
    model, its = state_of(seed, **optimizer)
    train(model, its)
    return model, its


def assert_loads(folder: Path | str, step: int, saved: Any, fresh: Any, **given: Any) -> None:
    """Assert that a load makes a fresh (model, optimizer) what the saved one is now."""
    assert load(folder, model=fresh[0], optimizer=fresh[1], **given) == step
    assert same([one.state_dict() for one in fresh], [one.state_dict() for one in saved])


@contextmanager
def unchanged(*owners: Any) -> Iterator[None]:
    """Assert that modules and optimizers keep their states."""
    before = copy.deepcopy([one.state_dict() for one in owners])
    yield
    assert same([one.state_dict() for one in owners], before)


def same(one: Any, other: Any) -> bool:
    """Return whether values, tensors, local ones of shards, and dtypes are equal throughout."""
    one, other = (getattr(x, "_local_tensor", x) for x in (one, other))
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other)) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
