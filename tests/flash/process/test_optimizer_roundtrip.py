"""Optimizers as scripts use them: a run that is resumed goes on as the unbroken one does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from checkpoints.small_models import assert_loads, load, opened, same, save, unchanged
from holdfast.flash.trainer.restore import RestoreError

pytestmark = pytest.mark.train
STEPS = 10


def _model() -> Any:
    torch.manual_seed(3)
    return nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])


def _forward(model: Any, used: int = 3) -> Any:
    values = torch.randn(8, 4).to(model[0].weight.dtype)
    for layer in list(model)[:used]:
        values = layer(values).tanh()
    return values.square().mean()


@dataclass
class Run:
    """One training, and the changes that its script makes on the way."""

    optimizer_of: Callable[[Any], Any]
    change: Callable[[int, Any, Any], None] = lambda _step, _model, _optimizer: None
    """Called before each step."""
    used: Callable[[int], int] = lambda _: 3
    """How many layers a step runs: the others get no gradient."""

    def begin(self) -> tuple[Any, Any]:
        model = _model()
        return model, self.optimizer_of(model)

    def go(self, state: tuple[Any, Any], first: int, last: int) -> None:
        model, optimizer = state
        for step in range(first, last + 1):
            torch.manual_seed(step)
            self.change(step, model, optimizer)
            optimizer.zero_grad()
            _forward(model, self.used(step)).backward()
            optimizer.step()


def _values(state: tuple[Any, Any]) -> list[Any]:
    return [state[0].state_dict(), state[1].state_dict()]


def _adam(model: Any, **settings: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=0.05, **settings)


def _empty_group_between(model: Any) -> Any:
    groups = [
        {"params": model[0].parameters()},
        {"params": [], "lr": 3.0},
        {"params": [*model[1].parameters(), *model[2].parameters()], "lr": 0.01},
    ]
    return torch.optim.AdamW(groups, lr=0.05)


def _thaws_at_5(step: int, model: Any, _: Any) -> None:
    model[0].requires_grad_(step >= 5)


def _freezes_at_5(step: int, model: Any, _: Any) -> None:
    model[0].requires_grad_(step < 5)


def _momentum(weights: str, moments: str) -> Callable[[Any], Any]:
    """Return what makes an optimizer whose moments have a dtype of their own."""

    class Momentum(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> Any:
            assert closure is None
            for group in self.param_groups:
                for one in group["params"]:
                    state = self.state[one]
                    if not state:
                        state["moment"] = torch.zeros_like(one, dtype=getattr(torch, moments))
                    state["moment"].mul_(0.9).add_(one.grad)
                    one.data.sub_(group["lr"] * state["moment"].to(one.dtype))

    def made(model: Any) -> Any:
        return Momentum(model.to(getattr(torch, weights)).parameters(), {"lr": 0.05})

    return made


RUNS = {
    "an empty group between others": Run(_empty_group_between),
    "a layer that thaws": Run(_adam, change=_thaws_at_5),
    "a layer that freezes": Run(_adam, change=_freezes_at_5),
    "a parameter without a gradient until step 8": Run(_adam, used=lambda s: 2 if s < 8 else 3),
    "moments that are wider than the weights": Run(_momentum("bfloat16", "float32")),
    "moments that are narrower than the weights": Run(_momentum("float32", "bfloat16")),
}


@pytest.mark.parametrize("at", [4, 8])
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_resumed_run_goes_on_as_the_unbroken_one(tmp_path: Path, run: Run, at: int) -> None:
    """Saved at every step and loaded from the one in the middle: all values are equal, exactly."""
    unbroken = run.begin()
    with opened(tmp_path, unbroken, keep_last=STEPS) as flash:
        for step in range(1, at + 1):
            run.go(unbroken, step, step)
            flash.save(step)
        flash.wait()
        there = copy.deepcopy(_values(unbroken))
        resumed = run.begin()
        with opened(tmp_path, resumed) as again:
            assert again.load() == at
        assert same(_values(resumed), there)
        run.go(unbroken, at + 1, STEPS)
        run.go(resumed, at + 1, STEPS)
        assert same(_values(resumed), _values(unbroken))


def _with_a_late_group(step: int, model: Any, optimizer: Any) -> None:
    if step == 5:
        optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.01})


def _first_two(model: Any) -> Any:
    return torch.optim.AdamW([*model[0].parameters(), *model[1].parameters()], lr=0.05)


def test_a_group_that_is_added_late_is_there_before_the_load(tmp_path: Path) -> None:
    """A script that resumes adds it first; one that does not is told so, and nothing changes."""
    run = Run(_first_two, change=_with_a_late_group)
    unbroken = run.begin()
    with opened(tmp_path, unbroken) as flash:
        for step in range(1, 8):
            run.go(unbroken, step, step)
            flash.save(step)
    short = run.begin()
    text = r"2 groups in the checkpoint, 1 here.*add_param_group"
    with unchanged(*short), pytest.raises(RestoreError, match=text):
        load(tmp_path, model=short[0], optimizer=short[1])
    resumed = run.begin()
    _with_a_late_group(5, *resumed)
    assert_loads(tmp_path, 7, unbroken, resumed)
    run.go(unbroken, 8, STEPS)
    run.go(resumed, 8, STEPS)
    assert same(_values(resumed), _values(unbroken))


def _lr(optimizer: Any) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def _warm_up(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=STEPS + 2)


def _decay(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)


def _chain(optimizer: Any) -> Any:
    from_here = torch.optim.lr_scheduler
    parts = [from_here.LinearLR(optimizer, 0.1, total_iters=4), from_here.StepLR(optimizer, 2)]
    return from_here.SequentialLR(optimizer, parts, milestones=[4])


@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("scheduler_of", [_warm_up, _decay, _chain])
def test_a_scheduler_that_is_made_before_the_load_goes_on(
    tmp_path: Path, scheduler_of: Any, *, as_tensor: bool
) -> None:
    """The rates that follow are the unbroken run's, also where the rate is a tensor."""

    def begin() -> tuple[Any, Any, Any]:
        model = _model()
        rate: Any = torch.tensor(0.05) if as_tensor else 0.05
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, foreach=False)
        return model, optimizer, scheduler_of(optimizer)

    run = Run(_adam)
    unbroken, resumed = begin(), begin()
    model, optimizer, scheduler = unbroken
    with opened(tmp_path, (model, optimizer), extra={"scheduler": scheduler}) as flash:
        for step in range(1, 6):
            run.go((model, optimizer), step, step)
            scheduler.step()
            flash.save(step)
    assert_loads(tmp_path, 5, unbroken[:2], resumed[:2], extra={"scheduler": resumed[2]})
    assert isinstance(resumed[1].param_groups[0]["lr"], torch.Tensor) == as_tensor
    for step in range(6, STEPS + 1):
        for one in (unbroken, resumed):
            run.go(one[:2], step, step)
            one[2].step()
        assert _lr(resumed[1]) == _lr(optimizer)
    assert same(_values(resumed[:2]), _values(unbroken[:2]))


def _powers(optimizer: Any, last: int = -1) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step, last)


def test_a_scheduler_that_is_made_after_the_load_begins_at_the_saved_rate(tmp_path: Path) -> None:
    """Its `initial_lr` comes with the optimizer, and its own state is plain data until then."""
    run = Run(_adam)
    unbroken, resumed = run.begin(), run.begin()
    scheduler = _powers(unbroken[1])
    with opened(tmp_path, unbroken, extra={"scheduler": scheduler}) as flash:
        for step in range(1, 6):
            run.go(unbroken, step, step)
            scheduler.step()
            flash.save(step)
    extra: dict[str, Any] = {"scheduler": None}
    with opened(tmp_path, resumed, extra=extra) as flash:
        assert flash.load() == 5
        saved = extra["scheduler"]
        extra["scheduler"] = late = _powers(resumed[1], 5)
        late.load_state_dict(saved)
        resumed[1].param_groups[0]["lr"] = late.get_last_lr()[0]
        for step in range(6, STEPS + 1):
            for state, its in ((unbroken, scheduler), (resumed, late)):
                run.go(state, step, step)
                its.step()
            assert _lr(resumed[1]) == _lr(unbroken[1])
        flash.save(STEPS)
    assert same(_values(resumed), _values(unbroken))


@pytest.mark.parametrize("saved", [False, True], ids=["number", "tensor"])
def test_a_rate_keeps_the_form_that_the_script_gave_it(tmp_path: Path, *, saved: bool) -> None:
    """A compiled step or a graph holds that tensor, and torch refuses one where it wants none."""

    def begin(rate: Any) -> tuple[Any, Any]:
        model = _model()
        return model, torch.optim.SGD(model.parameters(), lr=rate, foreach=True)

    run, one = Run(_adam), begin(torch.tensor(0.25) if saved else 0.25)
    one[1].param_groups[0]["foreach"] = False
    run.go(one, 1, 1)
    save(tmp_path, model=one[0], optimizer=one[1])
    live: Any = 0.5 if saved else torch.tensor(0.5)
    other = begin(live)
    assert load(tmp_path, model=other[0], optimizer=other[1]) == 1
    found = other[1].param_groups[0]["lr"]
    assert type(found) is type(live)
    assert float(found) == 0.25
    if not saved:
        assert found is live
