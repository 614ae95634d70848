"""Megatron's scheduler as replicas carry it, with Megatron's own class."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from holdfast.local_sgd.driver.changing import catch_up
from holdfast.local_sgd.megatron.scheduler import CarriedScheduler, carried

with warnings.catch_warnings():  # Megatron warns of all extensions that it has not found
    warnings.simplefilter("ignore")
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]


class Script:
    """A training script's scheduler, which it steps behind each inner step."""

    def __init__(self) -> None:
        """Make a decay over 80 samples."""
        self.inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        self.scheduler = OptimizerParamScheduler(
            self.inner, init_lr=0.0, max_lr=1.0, min_lr=0.1, lr_warmup_steps=8, lr_decay_steps=80,
            lr_decay_style="linear", start_wd=0.01, end_wd=0.01, wd_incr_steps=0,
            wd_incr_style="constant",
        )  # fmt: skip
        self.in_step = False
        self.carried: CarriedScheduler = carried(self.scheduler, lambda: self.in_step)

    def steps(self, count: int, samples: int = 4) -> None:
        """Step so often."""
        for _ in range(count):
            self.scheduler.step(increment=samples)

    @property
    def place(self) -> tuple[int, float]:
        """Samples so far, and the rate of the optimizer."""
        return self.scheduler.num_steps, self.inner.param_groups[0]["lr"]

    def gives(self) -> dict[str, Any]:
        """The state, given within a step of the inner optimizer."""
        self.in_step = True
        state = self.carried.state_dict()
        self.in_step = False
        return state


@pytest.mark.parametrize("before", [0, 3])
def test_a_joiner_is_where_the_others_are_after_the_step(before: int) -> None:
    """Also at a step of other samples than those before it, as a ramp-up of the batch has them."""
    giver, joiner = Script(), Script()
    giver.steps(5)
    giver.steps(1, samples=6)
    joiner.steps(before)
    joiner.carried.load_state_dict(giver.gives())
    assert catch_up(0, joiner.carried)
    giver.steps(1, samples=6)
    assert joiner.place == giver.place
    assert giver.place[0] == 32
    assert giver.place[1] == pytest.approx(0.7)
    assert not joiner.carried.catch_up(), "once"


def test_one_that_is_taken_back_steps_it_by_itself() -> None:
    """It is in the step in which it is told; its own samples count no more."""
    giver, behind = Script(), Script()
    giver.steps(6)
    behind.steps(2)
    behind.carried.load_state_dict(giver.gives())
    for one in (giver, behind):
        one.steps(1)
    assert behind.place == giver.place
    assert behind.place[0] == 28


def test_between_two_steps_a_state_is_behind_nothing() -> None:
    """As where the others have ended, or a loss scaler has left the step out."""
    giver, joiner = Script(), Script()
    giver.steps(6)
    joiner.carried.load_state_dict(giver.carried.state_dict())
    assert not catch_up(0, joiner.carried)
    assert joiner.place == giver.place


def test_what_is_not_megatron_s_is_carried_as_it_is() -> None:
    """A place in the data has nothing to be stepped."""
    one = object()
    assert carried(one, lambda: True) is one
