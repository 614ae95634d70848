"""A first step of an optimizer ahead of time leaves weights, state and rates as they were."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.replicas.warm_up import warm_up

OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.AdamW, {}),
    (torch.optim.Adam, {"weight_decay": 0.1, "lr": torch.tensor(0.01)}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.Rprop, {}),
]


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize(("kind", "settings"), OPTIMIZERS)
def test_nothing_is_changed(kind: Any, settings: dict[str, Any], *, trained: bool) -> None:
    """Before a first step and behind one; Rprop's step sizes are no learning rate."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), **{"lr": 0.01, **settings})
    if trained:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    held = [value for state in optimizer.state.values() for value in state.values()]
    warm_up([optimizer])
    after = (model.state_dict(), optimizer.state_dict())
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    now = [value for state in optimizer.state.values() for value in state.values()]
    assert [id(one) for one in now] == [id(one) for one in held]


class Counting(torch.optim.Optimizer):
    """Counts its steps in its groups, as schedule-free optimizers do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1, "k": 0, "sums": [0.0], "total": torch.zeros(1)})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Count."""
        for group in self.param_groups:
            group["k"] += 1
            group["sums"].append(1.0)
            group["total"] += 1


def test_what_an_optimizer_counts_in_its_groups_is_put_back() -> None:
    """Else each replica's first step would be its second."""
    optimizer = Counting(nn.Linear(3, 2).parameters())
    warm_up([optimizer])
    [group] = optimizer.param_groups
    assert (group["k"], group["sums"], group["total"].item()) == (0, [0.0], 0)


def test_an_optimizer_that_cannot_step_is_left_out() -> None:
    """LBFGS asks for a closure."""
    model = nn.Linear(3, 2)
    warm_up([torch.optim.LBFGS(model.parameters())])
    assert model.weight.grad is None
