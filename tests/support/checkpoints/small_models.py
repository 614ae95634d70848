"""A small model with an optimizer, trained a step or two, saved and loaded; and what is equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import holdfast


def state_of(seed: int = 0, **optimizer: Any) -> tuple[Any, Any]:
    """Return the model of a seed and its optimizer; `kind`: a class of torch.optim."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    kind = optimizer.pop("kind", "AdamW")
    return model, getattr(torch.optim, kind)(model.parameters(), lr=0.1, **optimizer)


def train(model: Any, optimizer: Any, steps: int = 1) -> None:
    """Take steps on random input."""
    import torch

    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()


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


def same(one: Any, other: Any) -> bool:
    """Return whether values, tensors and dtypes are equal throughout."""
    import torch

    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other)) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
