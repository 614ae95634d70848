"""Changes between two saves: the second one is of the state as it is then."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import holdfast
from checkpoints.small_models import load, same, state_of, train, trained_state
from holdfast.flash.schedule import Schedule
from holdfast.flash.trainer.leaves import StateError

pytestmark = pytest.mark.train


def test_state_that_appears_or_moves_is_planned_again(tmp_path: Path) -> None:
    """Optimizer state of the first step, a replaced parameter, a longer value: all are saved."""
    import torch

    model, optimizer = state_of()
    extra: dict[str, Any] = {"notes": []}
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer, extra=extra) as flash:
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
    model2, optimizer2 = state_of(4)
    assert load(tmp_path, model=model2, optimizer=optimizer2, extra=found) == 3
    assert found == extra
    assert same(model2.state_dict(), model.state_dict())
    assert same(optimizer2.state_dict(), optimizer.state_dict())


def test_an_optimizer_that_is_rolled_back_is_saved_as_it_is_now(tmp_path: Path) -> None:
    """`load_state_dict` puts new containers in place of those that were planned for."""
    model, optimizer = trained_state()
    before = copy.deepcopy(optimizer.state_dict())
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer) as flash:
        for _ in range(3):
            train(model, optimizer)
        flash.save(1)
        optimizer.load_state_dict(before)
        optimizer.param_groups[0]["lr"] = 0.001
        train(model, optimizer)
        flash.save(2)
        flash.wait()
    again = state_of()
    assert load(tmp_path, model=again[0], optimizer=again[1]) == 2
    assert same([one.state_dict() for one in again], [model.state_dict(), optimizer.state_dict()])
    assert again[1].param_groups[0]["lr"] == 0.001


def test_a_module_that_is_replaced_is_saved_as_it_is_now(tmp_path: Path) -> None:
    """The old one is in nobody's model any more, though all of its names are."""
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        flash.save(1)
        model[1] = nn.Linear(4, 4)
        flash.save(2)
        flash.wait()
    again = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert load(tmp_path, model=again) == 2
    assert same(again.state_dict(), model.state_dict())


@pytest.mark.parametrize("cut", ["data", "resize"])
def test_a_tensor_that_shrinks_where_it_lies_is_saved_as_it_is_now(
    tmp_path: Path, cut: str
) -> None:
    """The same object at the same address, with fewer numbers."""
    import torch
    from torch import nn

    def model_of(seen: torch.Tensor) -> nn.Module:
        model = nn.Linear(4, 4)
        model.register_buffer("seen", seen)
        return model

    seen = torch.arange(8.0)
    model = model_of(seen)
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        flash.save(1)
        at = seen.data_ptr()
        if cut == "data":
            seen.data = seen.data[:3]
        else:
            seen.resize_(3)
        assert (model.seen is seen, seen.data_ptr()) == (True, at)
        flash.save(2)
        flash.wait()
    again = model_of(torch.zeros(3))
    assert load(tmp_path, model=again) == 2
    assert same(again.state_dict(), model.state_dict())


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
