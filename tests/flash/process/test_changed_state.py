"""Changes between two saves: the second one is of the state as it is then."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from checkpoints.small_models import assert_loads, load, opened, state_of, train, trained_state
from holdfast.flash.schedule import Schedule
from holdfast.flash.trainer.leaves import StateError

pytestmark = pytest.mark.train


def test_state_that_appears_or_moves_is_planned_again(tmp_path: Path) -> None:
    """Optimizer state of the first step, a replaced parameter, a longer value: all are saved."""
    model, optimizer = state_of()
    extra: dict[str, Any] = {"notes": []}
    with opened(tmp_path, (model, optimizer), extra=extra) as flash:
        flash.save(1)
        assert optimizer.state == {}
        train(model, optimizer)
        flash.save(2)
        model[0].weight.data = torch.full((7, 5), 2.0)
        extra["notes"] = ["x" * 100_000]
        flash.save(3)
        flash.wait()
        assert flash.latest() == 3
    found: dict[str, Any] = {"notes": None}
    assert_loads(tmp_path, 3, (model, optimizer), state_of(4), extra=found)
    assert found == extra


def test_an_optimizer_that_is_rolled_back_is_saved_as_it_is_now(tmp_path: Path) -> None:
    """`load_state_dict` puts new containers in place of those that were planned for."""
    model, optimizer = trained_state()
    before = copy.deepcopy(optimizer.state_dict())
    with opened(tmp_path, (model, optimizer)) as flash:
        for _ in range(3):
            train(model, optimizer)
        flash.save(1)
        optimizer.load_state_dict(before)
        optimizer.param_groups[0]["lr"] = 0.001
        train(model, optimizer)
        flash.save(2)
        flash.wait()
    again = state_of()
    assert_loads(tmp_path, 2, (model, optimizer), again)
    assert again[1].param_groups[0]["lr"] == 0.001


def test_a_value_that_becomes_unloadable_is_refused_and_the_step_before_stays(
    tmp_path: Path,
) -> None:
    """A class of the user's that comes later is found as one that was there at first."""
    model, _ = state_of()
    extra: dict[str, Any] = {"best": {"loss": [None]}}
    with holdfast.Checkpointer(tmp_path, model=model, extra=extra, keep_last=1) as flash:
        flash.save(1)
        extra["best"]["loss"].append(Schedule())
        with pytest.raises(StateError, match=r"extra.best is no plain data"):
            flash.save(2)
        extra["best"]["loss"][-1] = 0.5
        flash.save(3)
        flash.wait()
    extra["best"] = None
    assert load(tmp_path, model=model, extra=extra) == 3
    assert extra["best"] == {"loss": [None, 0.5]}
