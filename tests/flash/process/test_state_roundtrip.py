"""States as users have them: each comes back exactly, or is refused by name before anything is."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from checkpoints.small_models import (
    assert_loads,
    load,
    opened,
    same,
    save,
    state_of,
    train,
    trained_state,
    unchanged,
)
from holdfast.flash.trainer.leaves import StateError
from holdfast.flash.trainer.restore import RestoreError
from house.sample import sampled

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore:ComplexHalf")]


def _linear(**buffers: Any) -> Any:
    model = nn.Linear(3, 3)
    for name, value in buffers.items():
        model.register_buffer(name, value)
    return model


def _holds(model: Any, **values: Any) -> Any:
    for name, value in values.items():
        setattr(model, name, value)
    return model


def _unsaved(seen: Any) -> Any:
    model = _linear()
    model.register_buffer("seen", seen, persistent=False)
    return model


def _two() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


CHANGES: dict[str, Callable[[], tuple[Any, Any, Callable[[Any], Any]]]] = {
    "none becomes a buffer": lambda: (
        _linear(mask=None),
        _holds(_linear(mask=None), mask=torch.zeros(3)),
        lambda model: _holds(model, mask=torch.randn(3)),
    ),
    "none becomes a parameter": lambda: (
        nn.Linear(3, 3, bias=False),
        nn.Linear(3, 3),
        lambda model: _holds(model, bias=nn.Parameter(torch.randn(3))),
    ),
    "a buffer becomes persistent": lambda: (
        _unsaved(torch.randn(3)),
        _linear(seen=torch.zeros(3)),
        lambda model: model._non_persistent_buffers_set.clear(),
    ),
    "transposed in place": lambda: (
        _linear(seen=torch.randn(4, 4)),
        _linear(seen=torch.zeros(4, 4)),
        lambda model: model.seen.t_(),
    ),
    "resized in place": lambda: (
        _linear(seen=torch.randn(2, 2)),
        _linear(seen=torch.zeros(4)),
        lambda model: model.seen.resize_(4),
    ),
    "shrunk in place": lambda: (
        _linear(seen=torch.arange(8.0)),
        _linear(seen=torch.zeros(3)),
        lambda model: model.seen.resize_(3),
    ),
    "fewer numbers at the same address": lambda: (
        _linear(seen=torch.arange(8.0)),
        _linear(seen=torch.zeros(3)),
        lambda model: _holds(model.seen, data=model.seen.data[:3]),
    ),
    "of another type": lambda: (
        _linear(seen=torch.randn(4)),
        _linear(seen=torch.zeros(4, dtype=torch.int32)),
        lambda model: _holds(model.seen, data=model.seen.data.view(torch.int32)),
    ),
    "a module is replaced": lambda: (
        _two(),
        _two(),
        lambda model: _holds(model, **{"1": nn.Linear(4, 4)}),
    ),
}
"""A model, a fresh one that is to get its state, and what changes between two saves."""


@pytest.mark.parametrize("case", CHANGES.values(), ids=CHANGES)
def test_what_a_tensor_becomes_between_two_saves_is_saved(tmp_path: Path, case: Any) -> None:
    """The same object or the same name, but not what was planned for."""
    model, fresh, change = case()
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        flash.save(1)
        change(model)
        flash.save(2)
    assert load(tmp_path, model=fresh) == 2
    assert same(dict(fresh.state_dict()), dict(model.state_dict()))


def test_views_that_read_the_same_bytes_otherwise_are_saved_apart(tmp_path: Path) -> None:
    """An imaginary part and that of the conjugate share memory, and differ in their sign."""
    values = torch.randn(4, dtype=torch.complex64)
    model = _linear(one=values.imag, other=values.conj().imag)
    save(tmp_path, model=model)
    fresh = _linear(one=torch.zeros(4), other=torch.zeros(4))
    assert load(tmp_path, model=fresh) == 1
    assert same((fresh.one, fresh.other), (values.imag, -values.imag))


def test_every_type_and_shape_of_a_buffer_comes_back(tmp_path: Path) -> None:
    """Bool, complex, float8 and others, with no dimension, no element, or gaps between."""
    names = (
        "bool int8 uint16 uint32 uint64 int64 float16 bfloat16 float64 complex32 complex64 "
        "complex128 float8_e4m3fn float8_e5m2 float8_e8m0fnu"
    )
    bits = torch.randint(0, 2, (64,), dtype=torch.uint8)
    found: dict[str, Any] = {}
    for name in names.split():
        values = bits.view(getattr(torch, name))
        found |= {f"a_{name}": values, f"{name}_0": values[0].clone(), f"{name}_none": values[:0]}
    found["gaps"] = torch.arange(24.0).view(4, 6).t()[::2]
    model = _linear(**found)
    save(tmp_path, model=model)
    fresh = _linear(**{name: torch.empty_like(value) for name, value in found.items()})
    assert load(tmp_path, model=fresh) == 1
    for name, value in found.items():
        back = getattr(fresh, name)
        assert (back.dtype, back.shape) == (value.dtype, value.shape), name
        assert back.contiguous().flatten().view(torch.uint8).tolist() == (
            value.contiguous().flatten().view(torch.uint8).tolist()
        ), name


def test_a_buffer_whose_elements_share_memory_is_refused_before_anything_changes(
    tmp_path: Path,
) -> None:
    """It cannot be written to; the remedy is told, and the layer before keeps its values."""
    save(tmp_path, model=_linear(seen=torch.randn(1).expand(4)))
    fresh = _linear(seen=torch.zeros(1).expand(4))
    text = r"model\.seen is expanded: .*clone\(\)"
    with unchanged(fresh), pytest.raises(RestoreError, match=text):
        load(tmp_path, model=fresh)


def _twice(*, tied: bool, value: float) -> Any:
    model: Any = nn.ModuleDict({"ends": nn.Embedding(7, 4), "head": nn.Linear(4, 7, bias=False)})
    if tied:
        model["head"].weight = model["ends"].weight
    with torch.no_grad():
        model["ends"].weight.fill_(value)
    return model


def test_tied_weights_come_back_and_two_do_not_become_one(tmp_path: Path) -> None:
    """One of two with other values would be lost; of equal ones, or into two, nothing is."""
    tied, other = _twice(tied=True, value=2.0), _twice(tied=True, value=0.0)
    apart = _twice(tied=False, value=0.0)
    save(tmp_path / "tied", model=tied)
    for model in (other, apart):
        assert load(tmp_path / "tied", model=model) == 1
        assert same(dict(model.state_dict()), dict(tied.state_dict()))
    with holdfast.Checkpointer(tmp_path / "apart", model=apart) as flash:
        flash.save(1)  # two, and equal
        with torch.no_grad():
            apart["head"].weight.fill_(3.0)
        flash.save(2)
    with (
        holdfast.Checkpointer(tmp_path / "apart", model=tied) as flash,
        pytest.raises(
            RestoreError, match=r"ends\.weight and model\.head\.weight are one tensor here"
        ),
    ):
        flash.load()
    assert tied["ends"].weight.unique().tolist() == [2.0]
    (tmp_path / "apart" / "step_2").rename(tmp_path / "gone")
    assert load(tmp_path / "apart", model=other) == 1


@pytest.mark.parametrize("where", ["inference", "meta"])
def test_a_load_in_a_mode_leaves_a_state_that_trains(tmp_path: Path, where: str) -> None:
    """Inference mode and another default device are the caller's, not the optimizer state's."""
    model, optimizer = trained_state()

    def mode() -> Any:
        return torch.inference_mode() if where == "inference" else torch.device("meta")

    with mode(), opened(tmp_path, (model, optimizer)) as flash:
        flash.save(1)
    other, its = state_of(1)
    with mode(), opened(tmp_path, (other, its)) as flash:
        assert flash.load() == 1
    assert same(
        [other.state_dict(), its.state_dict()], [model.state_dict(), optimizer.state_dict()]
    )
    train(other, its)


def test_what_was_made_in_inference_mode_is_filled(tmp_path: Path) -> None:
    """Also where torch copies because of gaps, which it refuses outside of that mode."""

    def model_of(value: float) -> Any:
        with torch.inference_mode():
            return _linear(seen=torch.full((4, 6), value).t())

    save(tmp_path, model=model_of(2.0))
    fresh = model_of(0.0)
    assert load(tmp_path, model=fresh) == 1
    assert fresh.seen.unique().tolist() == [2.0]


def test_an_extra_that_comes_later_or_is_replaced_is_saved(tmp_path: Path) -> None:
    """A new name, and another scheduler under a name that was there."""
    model, optimizer = state_of()
    steps = torch.optim.lr_scheduler.StepLR
    extra: dict[str, Any] = {"scheduler": steps(optimizer, 2)}
    with opened(tmp_path, (model, optimizer), extra=extra) as flash:
        flash.save(1)
        extra |= {"scheduler": steps(optimizer, 5), "best": 0.25}
        flash.save(2)
    found: dict[str, Any] = {"scheduler": steps(optimizer, 2), "best": None}
    assert load(tmp_path, model=model, optimizer=optimizer, extra=found) == 2
    assert (found["scheduler"].step_size, found["best"]) == (5, 0.25)


def test_plain_values_of_a_rank_are_those_of_the_save_and_come_back(tmp_path: Path) -> None:
    """A save takes the mapping's values of its moment. A load sets them in the same mapping."""
    model, _ = state_of()
    own = {"position": 5}
    with holdfast.Checkpointer(tmp_path, model=model, per_rank=own) as flash:
        flash.save(1)
        own["position"] = 6
        flash.save(2)
    own["position"] = 0
    assert load(tmp_path, model=model, per_rank=own) == 2
    assert own == {"position": 6}


class _Pair(tuple[int, ...]):
    """A class of the user's."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10**1000, r"extra\.odd is no plain data .*a whole number of 3322 bits, of which 2039"),
        ({"a": [_Pair((1, 2))]}, r"extra\.odd is no plain data .*it holds .*_Pair\."),
        (lambda: 1, r"extra\.odd: function cannot be saved: .*Make plain data of it"),
    ],
)
def test_what_becomes_no_data_is_refused_by_its_kind(tmp_path: Path, value: Any, text: str) -> None:
    """Also when numbers of that name were proved to be loadable before."""
    model, _ = state_of()
    extra: dict[str, Any] = {"odd": {"a": [1, (2,)]}}
    with holdfast.Checkpointer(tmp_path, model=model, extra=extra) as flash:
        flash.save(1)
        extra["odd"] = 7
        flash.save(2)
        extra["odd"] = value
        with pytest.raises(StateError, match=text):
            flash.save(3)
        extra["odd"] = 8
        flash.save(3)


@pytest.mark.timeout(60)
def test_a_value_that_is_in_itself_comes_back(tmp_path: Path) -> None:
    """To look for its kinds ends."""
    model, _ = state_of()
    loop: list[Any] = [1]
    loop.append(loop)
    extra: dict[str, Any] = {"loop": loop}
    with holdfast.Checkpointer(tmp_path, model=model, extra=extra) as flash:
        flash.save(1)
        loop[0] = 2
        flash.save(2)
    extra["loop"] = None
    assert load(tmp_path, model=model, extra=extra) == 2
    back = extra["loop"]
    assert back[0] == 2
    assert back[1] is back


def _keyed(key: Any) -> type[Any]:
    class Keyed(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter][key] = torch.full_like(parameter, 2.0)

    return Keyed


def test_an_optimizer_may_number_what_it_keeps(tmp_path: Path) -> None:
    """A whole number as a key comes back as one; what has no name of its own is refused."""
    kind = _keyed(0)
    model, _ = state_of()
    optimizer = kind(model.parameters(), lr=0.1)
    train(model, optimizer)
    save(tmp_path, model=model, optimizer=optimizer)
    other, _ = state_of(1)
    assert_loads(tmp_path, 1, (model, optimizer), (other, kind(other.parameters(), lr=0.1)))
    optimizer = _keyed(("a", 1))(model.parameters(), lr=0.1)
    train(model, optimizer)
    with pytest.raises(StateError, match=r"the state of 0\.bias has the key \('a', 1\): name it"):
        save(tmp_path, 2, model=model, optimizer=optimizer)


def test_a_learning_rate_of_another_shape_is_taken_as_it_was(tmp_path: Path) -> None:
    """A tensor of one element where the checkpoint has a number as a tensor."""
    model, _ = state_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    save(tmp_path, model=model, optimizer=optimizer)
    its = torch.optim.AdamW(model.parameters(), lr=torch.tensor([0.3]))
    assert_loads(tmp_path, 1, (model, optimizer), (model, its))


@pytest.mark.parametrize(
    "kind", sampled(["AdamW", "Adam", "NAdam", "RAdam", "Adagrad", "Adafactor"], 2)
)
def test_a_save_before_the_first_step_changes_no_step_after_it(tmp_path: Path, kind: str) -> None:
    """State is not forced into existence, which would cost an extra step of the optimizer."""

    def trained(path: Path | None) -> list[Any]:
        model, optimizer = state_of(kind=kind)
        with opened(path, (model, optimizer)) as flash:
            flash.save(1)
            torch.manual_seed(3)
            train(model, optimizer, 3)
        return [model.state_dict(), optimizer.state_dict()]

    assert same(trained(tmp_path), trained(None))
    assert (tmp_path / "step_1").is_dir()


def test_an_optimizer_that_hides_its_state_is_refused(tmp_path: Path) -> None:
    """ZeroRedundancyOptimizer keeps its moments elsewhere: they would be lost without a word."""
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.optim import AdamW

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
        try:
            model, _ = state_of()
            optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=0.1)
            train(model, optimizer)
            with opened(tmp_path, (model, optimizer)) as flash:
                text = r"optimizer: ZeroRedundancyOptimizer\.state_dict\(\) raised"
                with pytest.raises(StateError, match=text):
                    flash.save(1)
                optimizer.consolidate_state_dict()
                with pytest.raises(StateError, match="the state of 6 parameters, its state of 0"):
                    flash.save(1)
        finally:
            dist.destroy_process_group()


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """It could stand in no file."""
    with (
        holdfast.Checkpointer(tmp_path, model=_linear(**{"\ud800": torch.ones(1)})) as flash,
        pytest.raises(StateError, match=r"the name 'model\.\\ud800' is no text"),
    ):
        flash.save(1)
