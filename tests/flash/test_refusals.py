"""What does not fit is refused by its name, and the model keeps its values."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.flash.client import CheckpointError
from holdfast.flash.restoring import RestoreError
from holdfast.flash.state import StateError
from small_models import same, state_of, train

pytestmark = pytest.mark.train


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Torch warns about what is its own business."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch")
        yield


def _refusals() -> list[Any]:
    from torch import nn

    return [
        (nn.Sequential(nn.Linear(5, 7)), "is not in the state"),
        (nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 4)), r"\(4, 7\)"),
        (state_of()[0].double(), "float64"),
        (nn.Sequential(*state_of()[0], nn.Linear(3, 1)), "model.3.weight is not in the checkpoint"),
    ]


@pytest.mark.parametrize("number", range(4))
def test_a_model_that_does_not_fit_is_refused_and_untouched(tmp_path: Path, number: int) -> None:
    """Lacking, adding, another shape or dtype: the difference is named, no value changes."""
    model, optimizer = state_of()
    train(model, optimizer)
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer) as flash:
        flash.save(1)
    other, text = _refusals()[number]
    before = {key: value.clone() for key, value in other.state_dict().items()}
    with (
        holdfast.Checkpointer(tmp_path, model=other) as flash,
        pytest.raises(RestoreError, match=text),
    ):
        flash.load()
    assert same(dict(other.state_dict()), before)


def test_partial_takes_what_fits(tmp_path: Path) -> None:
    """The option that the refusal names: equal names and shapes are loaded, the rest stays."""
    from torch import nn

    model, _ = state_of()
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        flash.save(1)
    other: Any = nn.Sequential(*state_of(5)[0], nn.Linear(3, 1))
    last = other[3].weight.clone()
    with holdfast.Checkpointer(tmp_path, model=other) as flash:
        assert flash.load(partial=True) == 1
    assert same(model[0].weight, other[0].weight)
    assert same(other[3].weight, last)


def test_a_value_that_would_need_trust_is_refused_by_name(tmp_path: Path) -> None:
    """An object of a user's class in `extra` is told at the save, not at the load."""
    model, _ = state_of()
    with (
        holdfast.Checkpointer(tmp_path, model=model, extra={"odd": Path("x")}) as flash,
        pytest.raises(StateError, match=r"extra\.odd is no plain data"),
    ):
        flash.save(1)


def test_an_unknown_tensor_class_is_refused_by_name(tmp_path: Path) -> None:
    """What is behind a subclass is not known, so its bytes may not be all of it."""
    import torch

    class Wrapped(torch.Tensor):
        pass

    model, _ = state_of()
    model.register_buffer("odd", torch.ones(3).as_subclass(Wrapped))
    with (
        holdfast.Checkpointer(tmp_path, model=model) as flash,
        pytest.raises(StateError, match=r"model\.odd: a .*Wrapped"),
    ):
        flash.save(1)


def test_an_optimizer_of_another_model_is_refused(tmp_path: Path) -> None:
    """Its parameters have no names."""
    with (
        holdfast.Checkpointer(tmp_path, model=state_of()[0], optimizer=state_of()[1]) as flash,
        pytest.raises(StateError, match="in no given model"),
    ):
        flash.save(1)


def test_a_second_load_after_a_save_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """What a world starts from is chosen once: a later load would bring back an old step."""
    model, _ = state_of()
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        flash.save(1)
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        assert [flash.load(), flash.load()] == [1, 1]
        model[0].weight.data.fill_(3.0)
        flash.save(2)
        with pytest.raises(CheckpointError, match=r"was called before, and step 2 was saved"):
            flash.load()
    assert model[0].weight.unique().tolist() == [3.0]
