"""Committed steps to and from files of others, and compared with each other."""

from __future__ import annotations

import argparse
import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

import holdfast
from checkpoints.sample_shards import sample_step, save
from checkpoints.small_models import load, same, state_of, train, trained_state
from foreign_checkpoints.conversions import Print
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.tools import convert, diff
from holdfast.flash.tools.diff import Contents
from holdfast.flash.tools.formats import conversion, holdfast_step
from house import forks

pytestmark = [
    pytest.mark.train,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:rng of rank 0 begins anew"),
]


def _plain(seed: int) -> dict[str, Any]:
    model, optimizer = state_of(seed)
    return {"model": model, "optimizer": optimizer}


def _pipeline(seed: int) -> dict[str, Any]:
    """Two stages, each with its optimizer."""
    pairs = [state_of(seed), state_of(seed + 100)]
    return {"model": [one for one, _ in pairs], "optimizer": [one for _, one in pairs]}


def _odd(seed: int) -> dict[str, Any]:
    """A state of its own in a module, tied and frozen weights, odd types, a scheduler, extras."""

    class Counting(nn.Linear):
        seen: Any = ()

        def get_extra_state(self) -> Any:
            return {"seen": list(self.seen), "at": {"epoch": 3}}

        def set_extra_state(self, state: Any) -> None:
            self.seen = tuple(state["seen"])

    torch.manual_seed(seed)
    half = nn.Linear(6, 6, dtype=torch.bfloat16)
    model: Any = nn.Sequential(Counting(6, 6), half, nn.Linear(6, 6))
    model[2].weight = model[0].weight
    model[0].seen = (seed, 2)
    model.register_buffer("scalar", torch.tensor(float(seed)))
    model.register_buffer("none", torch.empty(0, 3))
    model[1].requires_grad_(requires_grad=False)
    groups: list[dict[str, Any]] = [
        {"params": model[0].parameters()},
        {"params": [model[2].bias], "lr": 0.5},
    ]
    optimizer = torch.optim.AdamW(groups, amsgrad=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    extra = {"scheduler": scheduler, "data": {"epoch": seed, "of": [1, (2, 3)]}, "t": torch.ones(3)}
    return {"model": model, "optimizer": optimizer, "extra": extra}


KINDS = pytest.mark.parametrize("kind", [_plain, _pipeline, _odd])


def _train(state: dict[str, Any]) -> None:
    models, optimizers = (
        one if isinstance(one, list) else [one] for one in (state["model"], state["optimizer"])
    )
    for model, optimizer in zip(models, optimizers, strict=True):
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn_like(parameter)
        optimizer.step()


def _saved(root: Path, state: dict[str, Any], step: int = 3) -> str:
    _train(state)
    with holdfast.Checkpointer(root, **state) as flash:
        flash.save(step)
    return str(root / f"step_{step}")


@KINDS
def test_what_was_exported_and_imported_is_the_same_state(
    kind: Any, tmp_path: Path, capsys: Print
) -> None:
    """Every tensor and value, under its own name; and a fresh state loads it."""
    state = kind(1)
    step, file = _saved(tmp_path / "ck", state), str(tmp_path / "state.pt")
    assert convert.main(["export", step, file]) == 0
    assert convert.main(["import", file, str(tmp_path / "again"), "--step", "7"]) == 0
    assert diff.main([step, str(tmp_path / "again" / "step_7")]) == 0
    assert capsys.readouterr().out.endswith("are the same, bit for bit\n")
    fresh = kind(2)
    _train(fresh)
    assert load(tmp_path / "again", **fresh) == 7
    for one, other in zip(_flat(state["model"]), _flat(fresh["model"]), strict=True):
        assert same(one.state_dict(), other.state_dict())
    for one, other in zip(_flat(state["optimizer"]), _flat(fresh["optimizer"]), strict=True):
        assert same(one.state_dict(), other.state_dict())
    assert isinstance(torch.load(file, weights_only=True), dict)


def _flat(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def test_parts_of_several_ranks_become_one_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One under the other, as the ranks had them."""
    # Values of a sample are random bytes.
    monkeypatch.setattr(holdfast_step, "decode_value", lambda *_: None)
    disk, root = Disk(), str(tmp_path / "ck")
    disk.make_dir(root)
    manifest, images = sample_step(10, random.Random(1))
    save(disk, root, (manifest, images))
    parts = [
        bytes(image[item.payload : item.payload + item.size])
        for shard, image in zip(manifest.shards, images, strict=True)
        for item in shard.table.tensors
    ]
    found = Contents(f"{root}/step_10").tensor("model.weight")
    assert found.shape == (200, 30)
    assert found.numpy().tobytes() == b"".join(parts)


def test_a_models_weights_alone_are_a_plain_state_dict(tmp_path: Path) -> None:
    """The exported weights load in another program without Holdfast."""
    state = _plain(1)
    file = str(tmp_path / "weights.pt")
    assert convert.main(["export", _saved(tmp_path / "ck", state), file, "--model-only"]) == 0
    other, _ = state_of(9)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert same(other.state_dict(), state["model"].state_dict())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ck", "weights.pt"]


def test_a_models_file_begins_a_training(tmp_path: Path) -> None:
    """With partial=True, for it has no optimizer; without, what is missing is named."""
    model, _ = state_of(5)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    root = tmp_path / "ck"
    assert convert.main(["import", str(tmp_path / "weights.pt"), str(root), "--step", "1"]) == 0
    other, optimizer = trained_state(6)
    with holdfast.Checkpointer(root, model=other, optimizer=optimizer) as flash:
        with pytest.raises(holdfast.flash.trainer.restore.RestoreError, match="param_groups"):
            flash.load()
        assert flash.load(partial=True) == 1
        train(other, optimizer)
        flash.save(2)
    assert same(Contents(str(root / "step_1")).tensor("model.0.weight"), model[0].weight)


def _layouts() -> dict[str, Callable[[dict[str, Any], Any, Any, Path], tuple[str, ...]]]:
    """Return what people save: each writes weights, moments and a step, and returns options."""

    def plain(weights: dict[str, Any], numbered: Any, _: Any, path: Path) -> tuple[str, ...]:
        args = argparse.Namespace(lr=0.1)
        more = {"loss": np.float64(1.5), "args": args, "seen": {1, 2}}
        torch.save({"model": weights, "optimizer": numbered, "step": 2, **more}, path)
        return ()

    def tutorial(weights: dict[str, Any], numbered: Any, _: Any, path: Path) -> tuple[str, ...]:
        parts = {"model_state_dict": weights, "optimizer_state_dict": numbered}
        torch.save({"epoch": 1, "loss": 1.5, **parts}, path)
        return ("--step", "2")

    def own(weights: dict[str, Any], numbered: Any, _: Any, path: Path) -> tuple[str, ...]:
        wrapped = {f"module.{key}": value for key, value in weights.items()}
        torch.save({"net": wrapped, "opts": [numbered], "global_step": 2, "loss": 1.5}, path)
        return ("--model", "net", "--optimizer", "opts")

    def of_dcp(weights: dict[str, Any], _: Any, named: Any, path: Path) -> tuple[str, ...]:
        state = {"model": weights, "optimizer": named, "step": 2, "extra": {"loss": 1.5}}
        dcp.save(state, checkpoint_id=path, no_dist=True)
        return ()

    def titan(weights: dict[str, Any], _: Any, named: Any, path: Path) -> tuple[str, ...]:
        flat = {
            f"state.{name}.{key}": value
            for name, state in named["state"].items()
            for key, value in state.items()
        } | {
            f"param_groups.{name}.{key}": value
            for group in named["param_groups"]
            for name in group["params"]
            for key, value in group.items()
            if key != "params"
        }
        train_state = {"step": torch.tensor(2, dtype=torch.int32), "losses": io.BytesIO(b"x")}
        more = {"train_state": train_state, "dataloader": {"dp_rank_0": b"5"}, "loss": 1.5}
        dcp.save({**weights, "optimizer": flat, **more}, checkpoint_id=path, no_dist=True)
        return ()

    return {one.__name__: one for one in (plain, tutorial, own, of_dcp, titan)}


@pytest.mark.parametrize("name", ["plain", "tutorial", "own", "of_dcp", "titan"])
def test_what_scripts_save_is_taken_over(tmp_path: Path, capsys: Print, name: str) -> None:
    """Numbered parameters get names; other keys are extras; what is an object is named."""
    model, optimizer = state_of(3)
    train(model, optimizer, 2)
    weights, moments = get_state_dict(model, optimizer)
    found = _layouts()[name](weights, optimizer.state_dict(), moments, tmp_path / "saved")
    root = str(tmp_path / "ck")
    assert convert.main(["convert", str(tmp_path / "saved"), root, *found]) == 0
    objects = {"plain": "extra.args", "titan": "extra.train_state.losses"}.get(name, "extras: ")
    assert objects in capsys.readouterr().out
    other, fresh = trained_state(4)
    extra: dict[str, Any] = {"loss": 0.0}
    assert load(root, model=other, optimizer=fresh, extra=extra, partial=True) == 2
    assert same(other.state_dict(), model.state_dict())
    assert same(fresh.state_dict(), optimizer.state_dict())
    assert extra == {"loss": 1.5}


def _refused(capsys: Print, *words: str) -> str:
    assert convert.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("holdfast: ")
    assert error.count("\n") == 1
    return error


def test_what_cannot_be_exported_is_refused_by_name(tmp_path: Path, capsys: Print) -> None:
    """A file is never replaced, half a file never left."""
    step = _saved(tmp_path / "ck", _plain(1))
    there = tmp_path / "there.pt"
    there.write_text("precious")
    assert "is there already: name a new file" in _refused(capsys, "export", step, str(there))
    assert there.read_text() == "precious"
    nowhere = str(tmp_path / "nowhere" / "x.pt")
    assert "is in no directory" in _refused(capsys, "export", step, nowhere)
    said = _refused(capsys, "export", str(tmp_path / "ck"), f"{tmp_path}/x.pt")
    assert "name one of step_3 in it" in said
    (file,) = Path(step).glob("*.distcp")
    file.write_bytes(file.read_bytes()[:-1])
    assert str(file) in _refused(capsys, "export", step, f"{tmp_path}/x.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ck", "there.pt"]


def test_what_cannot_be_imported_is_refused_by_name(tmp_path: Path, capsys: Print) -> None:
    """And no directory is made for it."""
    step, root = _saved(tmp_path / "ck", _plain(1)), str(tmp_path / "new")
    file = tmp_path / "state.pt"

    def refused(source: Any, *more: str, into: str = root) -> str:
        return _refused(capsys, "import", str(source), into, "--step", *(more or ("1",)))

    assert "No such file" in refused(tmp_path / "missing.pt")
    file.write_text("no tensors")
    assert "begins neither as an archive of torch.save" in refused(file)
    for content, text in (
        ([1, 2], "holds list, not a state_dict"),
        ({}, "holds dict, not a state_dict"),
        ({"net": {"w": torch.ones(2)}, "step": 3}, "--model KEY, one of net"),
        ({"w": torch.ones(2), "extra": {"step": 2}, "step": 3}, "'step' beside extra and in it"),
    ):
        torch.save(content, file)
        assert text in refused(file)
    assert "is Holdfast's own" in refused(step)
    assert "has none of" in refused(tmp_path)
    torch.save({"w": torch.ones(2)}, file)
    assert "has checkpoints" in refused(file, into=str(tmp_path / "ck"))
    assert "--step=0: steps count from 1" in refused(file, "0")
    torch.save({"w": torch.ones(4, 4).to_sparse()}, file)
    assert "w" in refused(file)
    assert not Path(root).exists() or not list(Path(root).glob("step_*"))


def test_the_commands_exit_codes_are_the_tools(tmp_path: Path) -> None:
    """`holdfast checkpoint diff`: 0 the same, 9 not."""
    one, other = (_saved(tmp_path / str(seed), _plain(seed)) for seed in (1, 2))
    for words, code in (
        (("diff", one, one), 0),
        (("diff", one, other), 9),
        (("export", one, str(tmp_path / "x.pt")), 0),
        (("export", one, str(tmp_path / "x.pt")), 2),
        (("import", str(tmp_path / "x.pt"), str(tmp_path / "c"), "--step", "4"), 0),
        (("import", str(tmp_path / "x.pt"), str(tmp_path / "c"), "--step", "0"), 2),
    ):
        command = ["-m", "holdfast_cli.main", "checkpoint", *words]
        done = forks.run(command, env=os.environ, timeout=60)
        assert done.returncode == code, (words, done.stderr)
        assert "Traceback" not in done.stderr


def test_each_kind_of_difference_is_a_line(tmp_path: Path, capsys: Print) -> None:
    """Names, types, shapes, values and tensors; a NaN is equal to itself; exit code 9."""

    def step(name: str, **content: Any) -> str:
        file = tmp_path / f"{name}.pt"
        torch.save({"model": content.pop("model"), "extra": content}, file)
        return conversion.convert(str(file), str(tmp_path / name), step=1).path

    nan = torch.tensor([float("nan"), 1.0, 2.0])
    weights = {"nan": nan, "same": torch.ones(2), "c": torch.tensor([1 + 1j, 2])}
    one = step(
        "a",
        model={**weights, "shape": torch.ones(2, 3), "type": torch.ones(2), "mine": torch.ones(1)},
        data={"epoch": 1, "nan": float("nan")},
        same={"t": torch.ones(2), "l": [1, (2, None)], "nan": float("nan")},
        kind=1,
    )
    changed = {
        **weights,
        "nan": nan + torch.tensor([0.0, 0.0, 0.5]),
        "c": torch.tensor([1 + 1j, 4]),
    }
    other = step(
        "b",
        model={**changed, "shape": torch.ones(3, 2), "type": torch.ones(2, dtype=torch.bfloat16)},
        data={"epoch": 2, "nan": float("nan")},
        same={"t": torch.ones(2), "l": [1, (2, None)], "nan": float("nan")},
        kind=True,
    )
    assert diff.main([one, other]) == 9
    assert capsys.readouterr().out.splitlines() == [
        f"model.mine: only in {one}",
        "extra.data: {'epoch': 1, 'nan': nan}, {'epoch': 2, 'nan': nan}",
        "extra.kind: 1, True",
        "model.c: 1 of 2 elements differ, the most by 2",
        "model.nan: 1 of 3 elements differ, the most by 0.5",
        "model.shape: float32 2x3, float32 3x2",
        "model.type: float32 2, bfloat16 2",
    ]
    assert diff.main([one, str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err
