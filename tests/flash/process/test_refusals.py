"""State that does not fit is refused by its name, and the model keeps its values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from checkpoints.small_models import (
    load,
    opened,
    same,
    save,
    state_of,
    train,
    trained_state,
    unchanged,
)
from holdfast.flash.memory.hashes import hash64
from holdfast.flash.trainer.client import CheckpointError
from holdfast.flash.trainer.leaves import StateError
from holdfast.flash.trainer.restore import RestoreError

pytestmark = pytest.mark.train


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (nn.Sequential(nn.Linear(5, 7)), "is not in the state"),
        (nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 4)), r"\(4, 7\)"),
        (state_of()[0].double(), "float64"),
        (nn.Sequential(*state_of()[0], nn.Linear(3, 1)), "model.3.weight is not in the checkpoint"),
    ],
    ids=["lacking", "shape", "dtype", "adding"],
)
def test_a_model_that_does_not_fit_is_refused_and_untouched(
    tmp_path: Path, other: Any, text: str
) -> None:
    """Lacking, adding, another shape or dtype: the difference is named, no value changes."""
    model, optimizer = trained_state()
    save(tmp_path, model=model, optimizer=optimizer)
    with unchanged(other), pytest.raises(RestoreError, match=text):
        load(tmp_path, model=other)


def test_the_first_ten_differences_are_listed_and_the_option(tmp_path: Path) -> None:
    """Of all, with their number; the optimizer keeps its state and settings too."""
    model, optimizer = trained_state()
    save(tmp_path, model=model, optimizer=optimizer)
    other: Any = nn.Sequential(*state_of(5)[0], *(nn.Linear(3, 3) for _ in range(6)))
    its = type(optimizer)(other.parameters(), lr=0.5)
    other(torch.ones(4, 5)).sum().backward()
    its.step()
    with unchanged(other, its), pytest.raises(RestoreError) as caught:
        load(tmp_path, model=other, optimizer=its)
    text = str(caught.value)
    assert text.startswith("13 differences between checkpoint and state, the first: ")
    assert text.endswith(". load(partial=True) takes what fits")
    shown = [f"model.{number}.{key}" for number in range(3, 8) for key in ("weight", "bias")]
    assert [name in text for name in shown] == [True] * 10
    assert text.count("is not in the checkpoint") == 10


def _groups_of(model: Any, *parts: slice) -> Any:
    parameters = list(model.parameters())
    return torch.optim.AdamW([{"params": parameters[part]} for part in parts], lr=0.1)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([slice(0, 6)], r"optimizer.param_groups: 2 groups in the checkpoint"),
        ([slice(0, 2), slice(2, 6)], r"optimizer.param_groups.0: other parameters"),
        ([slice(3, 6), slice(0, 3)], r"optimizer.param_groups.1: other parameters"),
    ],
)
def test_other_parameter_groups_are_refused(tmp_path: Path, parts: list[slice], text: str) -> None:
    """Fewer, or of other parameters: settings such as the learning rate would go astray."""
    model = state_of()[0]
    optimizer = _groups_of(model, slice(0, 3), slice(3, 6))
    train(model, optimizer)
    save(tmp_path, model=model, optimizer=optimizer)
    other = state_of(5)[0]
    its = _groups_of(other, *parts)
    with unchanged(other, its), pytest.raises(RestoreError, match=text):
        load(tmp_path, model=other, optimizer=its)


def _made_newer(step: Path) -> None:
    """Make of a committed step what the next Holdfast may write."""
    file = step / "holdfast.json"
    fields = json.loads(file.read_bytes())
    fields["checkpoint"]["format"] = 2
    body = json.dumps(fields["checkpoint"], separators=(",", ":"), sort_keys=True).encode()
    file.write_bytes(b'{"hash":"%016x","checkpoint":%s}\n' % (hash64(body), body))


@pytest.mark.parametrize("newer", [(1, 2), (2,)])
def test_a_newer_format_is_refused_and_nothing_older_is_taken_for_it(
    tmp_path: Path, newer: tuple[int, ...]
) -> None:
    """Path, format and remedy are told; neither a fresh start nor an older step is one."""
    model, optimizer = trained_state()
    with opened(tmp_path, (model, optimizer)) as flash:
        for step in (1, 2):
            flash.save(step)
    for step in newer:
        _made_newer(tmp_path / f"step_{step}")
    other, its = state_of(5)
    text = r"step_2/holdfast.json: format=2, this Holdfast reads 1: .*Update Holdfast, or move"
    with unchanged(other, its), pytest.raises(CheckpointError, match=text):
        load(tmp_path, model=other, optimizer=its)


def test_partial_takes_what_fits(tmp_path: Path) -> None:
    """The option that the refusal names: equal names and shapes are loaded, the rest stays."""
    model, _ = state_of()
    save(tmp_path, model=model)
    other: Any = nn.Sequential(*state_of(5)[0], nn.Linear(3, 1))
    last = other[3].weight.clone()
    assert load(tmp_path, model=other, partial=True) == 1
    assert same(model[0].weight, other[0].weight)
    assert same(other[3].weight, last)


def test_a_thawed_layer_leaves_the_learning_rate(tmp_path: Path) -> None:
    """The group's settings are those that the scheduler had reached, not a fresh optimizer's."""
    model, _ = state_of()
    saved = torch.optim.SGD(model[2].parameters(), lr=0.5)
    save(tmp_path, model=model, optimizer=saved)
    thawed = torch.optim.SGD(model.parameters(), lr=1e-9)
    assert load(tmp_path, model=model, optimizer=thawed, partial=True) == 1
    assert thawed.param_groups[0]["lr"] == 0.5


class _Odd:
    """What nobody has told torch to trust; frameworks do so for classes of the standard library."""


class _Wrapped(torch.Tensor):
    """Its bytes may not be all of it."""


def _with_a_buffer(value: torch.Tensor) -> Any:
    model, _ = state_of()
    model.register_buffer("odd", value)
    return model


def _with_calls() -> dict[str, Any]:
    """Return a state whose optimizer keeps a counter beside the parameters."""
    model, optimizer = trained_state()
    optimizer.state["calls"] = {"n": 1}
    return {"model": model, "optimizer": optimizer}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            lambda: {"model": state_of()[0], "extra": {"odd": _Odd()}},
            r"extra\.odd is no plain data",
        ),
        (
            lambda: {"model": _with_a_buffer(torch.ones(3).as_subclass(_Wrapped))},
            r"model\.odd: a .*Wrapped",
        ),
        (lambda: {"model": state_of()[0], "optimizer": state_of()[1]}, "in no given model"),
        (_with_calls, r"has an entry for a str that is no parameter"),
    ],
    ids=["needs trust", "unknown tensor", "another model's optimizer", "optimizer's own state"],
)
def test_what_could_not_be_loaded_is_refused_at_the_save(
    tmp_path: Path, state: Callable[[], dict[str, Any]], text: str
) -> None:
    """By its name, and not at the load: nothing would bring it back."""
    with pytest.raises(StateError, match=text):
        save(tmp_path, **state())


def test_a_second_load_after_a_save_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """A load after a save is refused. It would bring back an old step."""
    model, _ = state_of()
    save(tmp_path, model=model)
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        assert [flash.load(), flash.load()] == [1, 1]
        model[0].weight.data.fill_(3.0)
        flash.save(2)
        with pytest.raises(CheckpointError, match=r"was called before, and step 2 was saved"):
            flash.load()
    assert model[0].weight.unique().tolist() == [3.0]


def test_partial_keeps_the_moments_of_what_does_not_fit(tmp_path: Path) -> None:
    """A layer of another shape keeps its weights and its optimizer state; others are loaded."""
    model, optimizer = trained_state()
    save(tmp_path, model=model, optimizer=optimizer)
    other: Any = nn.Sequential(*state_of(5)[0][:2], nn.Linear(7, 4))
    its = type(optimizer)(other.parameters(), lr=0.5)
    train(other, its)
    before = {key: value.clone() for key, value in its.state[other[2].weight].items()}
    assert load(tmp_path, model=other, optimizer=its, partial=True) == 1
    assert same(dict(its.state[other[2].weight]), before)
    assert same(its.state[other[0].weight], optimizer.state[model[0].weight])
    train(other, its)


def test_partial_keeps_the_moments_that_the_checkpoint_lacks(tmp_path: Path) -> None:
    """Weights alone are loaded into a state whose optimizer has stepped."""
    model, _ = state_of()
    save(tmp_path, model=model)
    other, its = trained_state(5)
    before = {key: value.clone() for key, value in its.state[other[0].weight].items()}
    assert load(tmp_path, model=other, optimizer=its, partial=True) == 1
    assert same(dict(its.state[other[0].weight]), before)
    assert same(other[0].weight, model[0].weight)


class _Picky:
    """A scheduler of another version."""

    def state_dict(self) -> dict[str, int]:
        return {"epoch": 3}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise KeyError("milestones")


def test_an_extra_that_refuses_what_was_saved_leaves_the_tensors_alone(tmp_path: Path) -> None:
    """The error names the extra, what it raised, and which ones have theirs."""
    model, optimizer = trained_state()
    extra: dict[str, Any] = {"best": 0.5, "plan": _Picky()}
    save(tmp_path, model=model, optimizer=optimizer, extra=extra)
    other, its = state_of(5)
    text = r"extra.plan: _Picky refused .*milestones.*extra.best"
    with unchanged(other, its), pytest.raises(RestoreError, match=text):
        load(tmp_path, model=other, optimizer=its, extra=extra)


@pytest.mark.parametrize("step", [0, -1, True, "5", 2.0, 2**63, None])
def test_a_step_that_is_none_is_refused(tmp_path: Path, step: Any) -> None:
    """Before anything is done: the value and what is expected."""
    model, _ = state_of()
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        with pytest.raises(ValueError, match=r"step=.*: expected a whole number from 1"):
            flash.save(step)
        flash.save(1)
        flash.wait(1)


def test_a_conjugated_buffer_comes_back_as_it_was(tmp_path: Path) -> None:
    """A conjugated view is saved and restored by its values, not by its bytes."""
    model, _ = state_of()
    value = torch.tensor([1 + 2j, 3 - 4j])
    model.register_buffer("odd", value.clone().conj())
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        flash.save(1)
        flash.wait()
        model.odd.zero_()
        assert model.odd.is_conj()
    again, _ = state_of()
    again.register_buffer("odd", torch.zeros(2, dtype=value.dtype).conj())
    assert load(tmp_path, model=again) == 1
    assert same(again.odd.resolve_conj(), value.conj().resolve_conj())


def test_models_whose_parameters_share_a_name_keep_all_moments(tmp_path: Path) -> None:
    """One optimizer of its own model has them without a number, which another may have."""

    def made(seed: int) -> tuple[list[nn.Module], list[Any]]:
        torch.manual_seed(seed)
        models: list[nn.Module] = [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2)]
        both = [one for model in models for one in model.parameters()]
        return models, [torch.optim.Adam(both), torch.optim.SGD(models[1].parameters(), lr=0.1)]

    models, optimizers = made(1)
    sum(model(torch.ones(1, 2)).square().sum() for model in models).backward()
    optimizers[0].step()
    save(tmp_path, model=models, optimizer=optimizers)
    again, theirs = made(2)
    assert load(tmp_path, model=again, optimizer=theirs) == 1
    assert len(theirs[0].state) == 6
    for one, other in zip(models, again, strict=True):
        for mine, yours in zip(one.parameters(), other.parameters(), strict=True):
            assert same(mine, yours)
            assert same(dict(optimizers[0].state[mine]), dict(theirs[0].state[yours]))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"extra": [1]}, r"extra is a list: expected a mapping"),
        ({"extra": {1: 2}}, r"extra has the name 1: expected text"),
        ({"per_rank": {"rng": 1}}, r'per_rank has "rng", which is saved by itself'),
        ({"schedule": 5}, r"schedule=5: expected holdfast.Schedule"),
        ({"threads": 0}, r"threads=0: expected a whole number"),
        ({"model": 3}, r"model=3: expected Module"),
    ],
)
def test_an_argument_that_is_none_is_refused_by_its_name(
    tmp_path: Path, wrong: dict[str, Any], text: str
) -> None:
    """The constructor refuses a wrong argument by its name. It does not wait for the first save."""
    with pytest.raises((TypeError, ValueError), match=text):
        holdfast.Checkpointer(tmp_path, **wrong)


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("s3://bucket/run", ValueError, r"path='s3://bucket/run' is a URL: give a directory"),
        (b"bytes", TypeError, r"path=b'bytes': expected text"),
        ("file", NotADirectoryError, r"path='file' is a file: give a directory"),
        ("gone", NotADirectoryError, r"path='gone' is a link to nothing: give a directory"),
    ],
)
def test_a_path_that_is_no_directorys_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any, kind: Any, text: str
) -> None:
    """Taken as a name it would be made below the working directory; a volume may not be mounted."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("gone").symlink_to("nowhere")
    with pytest.raises(kind, match=text):
        holdfast.Checkpointer(path, model=state_of()[0])


def test_a_link_to_a_directory_is_one(tmp_path: Path) -> None:
    """The steps lie in what it leads to."""
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    save(tmp_path / "link", model=state_of()[0])
    assert (tmp_path / "there" / "step_1").is_dir()
