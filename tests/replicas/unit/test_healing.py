"""A joiner's state on its way: whole, or said not to be, whatever fails on either side."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from holdfast.local_sgd.sync.group import SyncError
from holdfast.replicas.healing import Healing, JoinerState

pytestmark = pytest.mark.train


class State:
    """A state of one tensor, which may fail."""

    def __init__(
        self, error: type[Exception] | None = None, held: threading.Event | None = None
    ) -> None:
        """Take what giving and taking raise, and what they wait for."""
        self.value, self._error, self._held = torch.zeros(3), error, held

    def give(self, broadcast: Any, _: bytes) -> None:
        """Give."""
        if self._error is not None:
            raise self._error("torn")  # kept by nobody: its traceback keeps the group open
        broadcast(torch.ones(3))
        if self._held is not None:
            self._held.wait()
        broadcast(torch.ones(3))

    def take(self, broadcast: Any) -> None:
        """Take."""
        broadcast(self.value)
        broadcast(self.value)


def pair(giving: State, taking: State, timeout: float = 20.0) -> tuple[Healing, Healing]:
    """Return both sides, begun."""
    store: Any = dist.HashStore()

    def begin(state: Any, position: bytes | None) -> Healing:
        return Healing(state, position, (store, "heal"), is_lost=lambda: False, timeout=timeout)

    return begin(giving, b"position"), begin(taking, None)


def test_a_state_is_whole_when_both_sides_have_ended() -> None:
    """The control of the tests below."""
    taking = State()
    for one in pair(State(), taking):
        one.wait()
    assert torch.equal(taking.value, torch.ones(3))


@pytest.mark.parametrize("error", [KeyError, ZeroDivisionError, OSError])
def test_any_error_of_a_donor_fails_both_sides(error: type[Exception]) -> None:
    """An optimizer of somebody's own may raise what it likes: no state is taken for whole."""
    donor, joiner = pair(State(error), State())
    with pytest.raises(SyncError, match=f"not given whole: {error.__name__}"):
        donor.wait()
    with pytest.raises(SyncError, match="not given whole"):
        joiner.wait()


def test_a_transfer_that_is_late_gives_nothing_more() -> None:
    """The donor steps then: what it gave from now on would be of another step."""
    held = threading.Event()
    taking = State()
    donor, joiner = pair(State(held=held), taking, timeout=1.0)
    with pytest.raises(SyncError, match="not given whole in 1 s"):
        donor.wait()
    held.set()
    with pytest.raises(SyncError, match="not given whole"):
        joiner.wait()
    donor.stop()


def test_a_joiner_is_given_frozen_parameters_too() -> None:
    """Gradients go through them: with its own ones it would compute others'."""
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    states = []
    for model in models:
        model.bias.requires_grad = False
        optimizer = torch.optim.SGD([model.weight], lr=0.1)
        states.append(JoinerState([model], [optimizer], [[model.weight], [model.bias]]))
    parcels: list[torch.Tensor] = []
    states[0].give(lambda tensor: parcels.append(tensor.clone()), states[0].position())
    given = iter(parcels)
    states[1].take(lambda tensor: tensor.copy_(next(given)))  # type: ignore[arg-type]
    assert torch.equal(models[1].bias, models[0].bias)
    assert torch.equal(models[1].weight, models[0].weight)


def test_what_is_carried_late_changes_no_learning_rate() -> None:
    """A script may name one more at any step; rates are those of now."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = JoinerState([model], [optimizer], [[model.weight, model.bias]])
    parcels: list[torch.Tensor] = []
    state.give(lambda tensor: parcels.append(tensor.clone()), state.position())
    given = iter(parcels)
    state.take(lambda tensor: tensor.copy_(next(given)))  # type: ignore[arg-type]
    state.load_position()
    optimizer.param_groups[0]["lr"] = 0.5
    state.carry("scheduler", torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0))
    assert optimizer.param_groups[0]["lr"] == 0.5
