"""Averaged weights, and storages that are replaced between saves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import holdfast
from checkpoints.small_models import assert_loads, opened, same, state_of, train, trained_state
from holdfast.flash.trainer.leaves import StateError

pytestmark = pytest.mark.train
WIDTH = 2500
"""Of a square matrix of 25 MB; a model of two has 50 MB, and so has its average."""


def _averaged(seed: int) -> tuple[Any, Any, Any]:
    """Return a model, its optimizer, and an average of it that has 50 MB."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))


def _step(model: Any, optimizer: Any, average: Any) -> None:
    optimizer.zero_grad()
    model(torch.randn(2, WIDTH)).square().mean().backward()
    optimizer.step()
    average.update_parameters(model)


@pytest.mark.parametrize("where", ["extra", "model"])
def test_an_average_of_50_mb_comes_back(tmp_path: Path, where: str) -> None:
    """As a second model, and as an extra, whose bytes outgrow the room that values begin with."""

    def flash_of(state: tuple[Any, Any, Any]) -> Any:
        model, optimizer, average = state
        if where == "extra":
            return opened(tmp_path, (model, optimizer), extra={"average": average})
        return holdfast.Checkpointer(tmp_path, model=[model, average], optimizer=optimizer)

    one, other = _averaged(1), _averaged(2)
    with flash_of(one) as flash:
        for step in range(1, 4):
            _step(*one)
            flash.save(step, durable=step == 3)
    with flash_of(other) as flash:
        assert flash.load() == 3
    assert int(other[2].n_averaged) == 3
    for mine, its in zip(one, other, strict=True):
        assert same(mine.state_dict(), its.state_dict())


def _clones(model: Any, _: Any) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _moves_the_moments(_: Any, optimizer: Any) -> None:
    for state in optimizer.state.values():
        for key, value in state.items():
            state[key] = value.clone()


def _assigns_and_makes_the_optimizer_anew(model: Any, optimizer: Any) -> None:
    kept = copy.deepcopy(optimizer.state_dict())
    model.load_state_dict(
        {key: value.clone() for key, value in model.state_dict().items()}, assign=True
    )
    optimizer.param_groups.clear()
    optimizer.state.clear()
    optimizer.add_param_group({"params": list(model.parameters())})
    optimizer.load_state_dict(kept)


@pytest.mark.parametrize("overlap", [False, True], ids=["at once", "overlapped"])
@pytest.mark.parametrize(
    "change", [_clones, _moves_the_moments, _assigns_and_makes_the_optimizer_anew]
)
def test_storages_that_are_replaced_between_saves_are_saved_as_they_are_then(
    tmp_path: Path, change: Callable[[Any, Any], None], *, overlap: bool
) -> None:
    """Whatever was planned for lies elsewhere: each save is of the values of its moment."""
    model, optimizer = state_of()
    with opened(tmp_path, (model, optimizer), overlap=overlap) as flash:
        for step in range(1, 6):
            train(model, optimizer)
            flash.join()
            change(model, optimizer)
            flash.save(step)
    assert_loads(tmp_path, 5, (model, optimizer), state_of(4))


def test_an_optimizer_whose_parameters_were_assigned_away_is_refused_with_the_remedy(
    tmp_path: Path,
) -> None:
    """`assign=True` makes new parameters: the optimizer trains the old ones, which nobody uses."""
    model, optimizer = trained_state()
    with opened(tmp_path, (model, optimizer)) as flash:
        flash.save(1)
        fresh = {key: value.clone() for key, value in model.state_dict().items()}
        model.load_state_dict(fresh, assign=True)
        with pytest.raises(StateError, match=r"assign=True.*make the optimizer after"):
            flash.save(2)
        flash.wait()
        assert flash.latest() == 1


def _swap_values(model: Any, average: Any) -> None:
    with torch.no_grad():
        for one, other in zip(model.parameters(), average.parameters(), strict=True):
            kept = one.clone()
            one.copy_(other)
            other.copy_(kept)


def _swap_storages(model: Any, average: Any) -> None:
    for one, other in zip(model.parameters(), average.parameters(), strict=True):
        one.data, other.data = other.data, one.data


@pytest.mark.parametrize("overlap", [False, True], ids=["at once", "overlapped"])
@pytest.mark.parametrize("swap", [_swap_values, _swap_storages])
def test_a_save_while_averaged_weights_are_swapped_in_is_of_what_is_there(
    tmp_path: Path, swap: Callable[[Any, Any], None], *, overlap: bool
) -> None:
    """A load puts the same weights into the same places; swapped back, all is as it was."""

    def begin(seed: int) -> tuple[Any, Any, Any]:
        model, optimizer = state_of(seed)
        return model, optimizer, AveragedModel(model)

    def assert_loaded(step: int) -> None:
        model, optimizer, average = other = begin(2)
        with holdfast.Checkpointer(tmp_path, model=[model, average], optimizer=optimizer) as again:
            assert again.load() == step
        for mine, its in zip(one, other, strict=True):
            assert same(mine.state_dict(), its.state_dict())

    model, optimizer, average = one = begin(1)
    with holdfast.Checkpointer(
        tmp_path, model=[model, average], optimizer=optimizer, overlap=overlap
    ) as flash:
        for step in range(1, 4):
            train(model, optimizer)
            flash.join()
            average.update_parameters(model)
            flash.save(step)
        flash.join()
        swap(model, average)
        flash.save(4)
        flash.wait()
        assert_loaded(4)
        flash.join()
        swap(model, average)
        train(model, optimizer)
        flash.save(5)
        flash.wait()
        assert_loaded(5)
