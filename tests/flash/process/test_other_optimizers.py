"""A state goes back to the optimizer that it is of; to another one it does not, though it fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

from checkpoints.small_models import (
    assert_loads,
    load,
    same,
    save,
    state_of,
    train,
    trained_state,
    unchanged,
)
from holdfast.flash.memory.hashes import hash64
from holdfast.flash.trainer.restore import RestoreError
from holdfast.flash.trainer.state_dict import classes_of
from holdfast.flash.trainer.torch_shards import other_class

pytestmark = pytest.mark.train


def _saved(folder: Path, **optimizer: Any) -> tuple[Any, Any]:
    """Train a step and save it; return model and optimizer."""
    model, its = trained_state(**optimizer)
    save(folder, 7, model=model, optimizer=its)
    return model, its


def _refused(folder: Path, model: Any, optimizer: Any, text: str) -> None:
    """Load into what has stepped; it is refused, and nothing has changed."""
    train(model, optimizer)
    with unchanged(model, optimizer), pytest.raises(RestoreError, match=text):
        load(folder, model=model, optimizer=optimizer)


def _loaded(folder: Path, model: Any, optimizer: Any, *, partial: bool = False) -> None:
    assert load(folder, model=model, optimizer=optimizer, partial=partial) == 7


def _as_of_an_older_release(folder: Path) -> None:
    """Take the classes out of the committed step, as if nobody had written them."""
    file = folder / "step_7" / "holdfast.json"
    fields = json.loads(file.read_bytes())
    for shard in fields["checkpoint"]["shards"]:
        assert shard["table"].pop("optimizers")
    body = json.dumps(fields["checkpoint"], separators=(",", ":"), sort_keys=True).encode()
    file.write_bytes(b'{"hash":"%016x","checkpoint":%s}\n' % (hash64(body), body))


@pytest.mark.parametrize(
    ("saved", "live"),
    [
        ("Adamax", "Adam"),
        ("Adam", "Adamax"),
        ("RMSprop", "Adagrad"),
        ("Adagrad", "RMSprop"),
        ("AdamW", "SGD"),
        ("SGD", "AdamW"),
        ("RAdam", "NAdam"),
    ],
)
def test_another_class_is_refused_by_name_and_partial_keeps_its_own_state(
    tmp_path: Path, saved: str, live: str
) -> None:
    """Both classes, the step and the remedies are told, whatever fits by name and shape."""
    model, _ = _saved(tmp_path, kind=saved)
    other, its = state_of(5, kind=live)
    text = (
        rf"optimizer: the checkpoint of step 7 was saved by {saved} \(torch\.optim\.\w+\.{saved}\)"
        rf", this job has {live} \(.*\): train with {saved}, .* load\(partial=True\)"
    )
    _refused(tmp_path, other, its, text)
    with unchanged(its):
        _loaded(tmp_path, other, its, partial=True)
    assert same(other.state_dict(), model.state_dict())


@pytest.mark.parametrize(
    ("kind", "setting"), [("Adam", "amsgrad"), ("AdamW", "amsgrad"), ("RMSprop", "centered")]
)
@pytest.mark.parametrize("saved", [True, False])
def test_a_setting_that_keeps_other_tensors_is_refused_by_name(
    *, tmp_path: Path, kind: str, setting: str, saved: bool
) -> None:
    """On one side alone there is one tensor more: it would be lost, or its setting undone."""
    _saved(tmp_path, kind=kind, **{setting: saved})
    other, its = state_of(5, kind=kind, **{setting: not saved})
    text = rf"step 7 was saved with {setting}={saved}, this job has {setting}={not saved}: set "
    _refused(tmp_path, other, its, text)
    with unchanged(its):
        _loaded(tmp_path, other, its, partial=True)


@pytest.mark.parametrize(("saved", "live"), [("AdamW", "Adam"), ("Adam", "AdamW")])
def test_adam_and_adamw_take_each_others_state_and_keep_their_own_decay(
    tmp_path: Path, saved: str, live: str
) -> None:
    """Their moments are the same; how weights decay is what the job's class says."""
    model, optimizer = _saved(tmp_path, kind=saved)
    other, its = state_of(5, kind=live)
    own = its.param_groups[0].get("decoupled_weight_decay")
    _loaded(tmp_path, other, its)
    assert same(its.state_dict()["state"], optimizer.state_dict()["state"])
    assert same(other.state_dict(), model.state_dict())
    assert its.param_groups[0].get("decoupled_weight_decay") == own
    train(other, its)


@pytest.mark.parametrize(
    "live",
    [{"foreach": True}, {"foreach": False}, {"fused": True}, {"weight_decay": 0.5}, {"eps": 1e-3}],
)
def test_how_it_computes_and_other_values_are_no_other_optimizer(
    tmp_path: Path, live: dict[str, Any]
) -> None:
    """Flags and numbers decide nothing about what is kept; those of the checkpoint go on."""
    _, optimizer = _saved(tmp_path, kind="Adam", betas=(0.8, 0.9))
    other, its = state_of(5, kind="Adam", **live)
    its.param_groups[0]["lr"] = 0.7
    _loaded(tmp_path, other, its)
    assert same(its.state_dict()["state"], optimizer.state_dict()["state"])
    assert its.param_groups[0]["lr"] == 0.1
    train(other, its)


def test_settings_of_another_release_or_a_scheduler_are_no_other_optimizer(tmp_path: Path) -> None:
    """More settings on one side alone, or a scheduler's own: the state is loaded."""
    model, optimizer = state_of()
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
    train(model, optimizer)
    save(tmp_path, 7, model=model, optimizer=optimizer)
    other, its = state_of(5)
    its.param_groups[0]["of_the_next_release"] = True
    _loaded(tmp_path, other, its)
    assert same(its.state_dict()["state"], optimizer.state_dict()["state"])


def test_a_class_that_is_derived_from_the_one_that_saved_takes_its_state(tmp_path: Path) -> None:
    """Also where a library wraps it; another one in the same wrapper is refused."""

    class Logged(optim.Adam):
        """One of the user's."""

    class Wrapper(optim.Optimizer):
        """As accelerate has it: all that is asked of it is the inner one's."""

        def __init__(self, optimizer: optim.Optimizer) -> None:
            self.optimizer = optimizer
            self.param_groups, self.state = optimizer.param_groups, optimizer.state

    _, optimizer = _saved(tmp_path, kind="Adam")
    other, _ = state_of(5)
    logged = Logged(other.parameters())
    _loaded(tmp_path, other, Wrapper(logged))
    assert same(logged.state_dict()["state"], optimizer.state_dict()["state"])
    with pytest.raises(RestoreError, match=r"saved by Adam .*, this job has Adamax"):
        load(tmp_path, model=other, optimizer=Wrapper(optim.Adamax(other.parameters())))


def test_each_of_several_optimizers_is_told_by_its_own_name(tmp_path: Path) -> None:
    """The second one alone is another: the first is not named."""

    def made(second: Any) -> tuple[list[Any], list[Any]]:
        models = [nn.Linear(2, 2), nn.Linear(2, 2)]
        return models, [optim.SGD(models[0].parameters()), second(models[1].parameters())]

    models, optimizers = made(optim.Adamax)
    save(tmp_path, 7, model=models, optimizer=optimizers)
    others, its = made(optim.Adam)
    with pytest.raises(RestoreError, match=r"^1 differences .*: optimizer\.1: .* by Adamax"):
        load(tmp_path, model=others, optimizer=its)


def test_what_an_older_release_saved_is_loaded_as_it_was_then(tmp_path: Path) -> None:
    """Without the classes; what the settings tell of another optimizer is still refused."""
    model, optimizer = _saved(tmp_path)
    _as_of_an_older_release(tmp_path)
    assert_loads(tmp_path, 7, (model, optimizer), state_of(5))
    text = r"optimizer: another optimizer's settings: .*betas.* are not in the state, .*momentum"
    _refused(tmp_path, *state_of(5, kind="SGD"), text)


@pytest.mark.parametrize(
    ("saved", "live", "same_kind"),
    [
        (["train.Lion"], ["__main__.Lion"], True),
        (["a.Lion"], ["a.Tiger"], False),
        (["a.Lion", "a.Cat"], ["a.Tiger", "a.Cat"], False),
        (["a.Lion", "a.Cat"], ["a.Cat"], True),
        (["a.Mine", "torch.optim.adam.Adam"], ["a.Yours", "torch.optim.adam.Adam"], True),
        (["a.Mine", "torch.optim.adamw.AdamW"], ["torch.optim.adam.Adam"], True),
        (["torch.optim.adamw.AdamW"], ["torch.optim.adam.Adam"], True),
        ([], ["torch.optim.adam.Adam"], True),
    ],
)
def test_akin_is_who_is_derived_from_the_other_or_from_the_same_of_torch(
    saved: list[str], live: list[str], *, same_kind: bool
) -> None:
    """A library's common base says nothing of what its classes keep; a module's name neither."""
    assert (other_class(saved, live, 1) == "") is same_kind


def test_the_classes_of_an_optimizer_end_before_what_all_have() -> None:
    """Torch's own base class would make all of them akin."""
    assert classes_of(state_of(kind="SGD")[1]) == ("torch.optim.sgd.SGD",)
