"""Checkpoints of DeepSpeed and Megatron, made by the real libraries, to steps and back."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from foreign_checkpoints import worlds
from foreign_checkpoints.conversions import Print, converted, refused
from foreign_checkpoints.corruption import damage
from holdfast.flash.tools import diff, inspect
from holdfast.flash.tools.diff import Contents
from house.patience import patience
from house.sample import sampled

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
STAGES = pytest.mark.parametrize("stage", sampled([1, 2, 3], 1))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of ZeRO-1, 2 and 3 of two ranks, each also as `ds_to_universal` makes it."""
    pytest.importorskip("deepspeed")
    folder = tmp_path_factory.mktemp("deepspeed")
    places = {stage: str(folder / f"zero{stage}") for stage in (1, 2, 3)}
    worlds.run(
        "deepspeed",
        [
            {"call": "save", "world": 2, "stage": one, "folder": place, "truth": f"{place}.pt"}
            for one, place in places.items()
        ],
    )
    for stage in (1, 2, 3):
        _universal(folder / f"zero{stage}" / "global_step3")
    return folder


def _universal(source: Path) -> None:
    """Have DeepSpeed's own converter make a universal checkpoint beside a native one."""
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"]
    words = ["--input_folder", str(source), "--output_folder", f"{source}_universal"]
    subprocess.run(
        [*command, *words, "--inject_missing_state"],
        check=True,
        capture_output=True,
        timeout=100 * patience(),
        env={"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
    )


@STAGES
def test_native_and_universal_files_of_a_stage_are_one_state(
    saved: Path, tmp_path: Path, stage: int
) -> None:
    """Masters are those that DeepSpeed gathers; all else is as its own converter has it."""
    native = converted(saved / f"zero{stage}" / "global_step3", tmp_path / "native")
    universal = converted(saved / f"zero{stage}" / "global_step3_universal", tmp_path / "universal")
    assert native.name == "step_3"
    assert diff.main([str(native), str(universal)]) == 0
    found, truth = Contents(str(native)), torch.load(saved / f"zero{stage}.pt")
    for name, master in truth.items():
        assert torch.equal(found.tensor(f"model.{name}"), master), name
        for key in ("exp_avg", "exp_avg_sq", "step"):
            assert found.tensor(f"optimizer.state.{name}.{key}").abs().sum() > 0
    assert found.values["optimizer.param_groups.0.weight_decay"] == 0.1
    assert torch.equal(found.tensor("model.count"), torch.arange(3.0))
    assert found.forms["model.frozen.weight"][1] == (11, 11)
    assert found.tensor("model.tied.weight").equal(found.tensor("model.n.weight"))
    assert found.values["deepspeed.epoch"] == 2


@pytest.mark.parametrize(
    ("stage", "version"),
    sampled([(1, "-0.3"), (2, ""), (3, "")], 2),
)
def test_deepspeed_itself_loads_a_universal_checkpoint_of_ours(
    saved: Path, tmp_path: Path, stage: int, version: str
) -> None:
    """In another world and stage: what it then saves is the state bit for bit."""
    origin = converted(saved / "zero2" / "global_step3", tmp_path / "origin")
    made = tmp_path / "ck" / "ours"
    made.parent.mkdir()
    converted(origin, made, "--to", f"deepspeed-universal{version}")
    world = {"call": "load_and_save", "world": 3, "stage": stage, "folder": str(made.parent)}
    worlds.run("deepspeed", [world | {"tag": "ours", "again": str(tmp_path / "again")}])
    one, other = (_tensors(path) for path in (origin, converted(made, tmp_path / "read")))
    loaded = _tensors(converted(tmp_path / "again" / "again", tmp_path / "loaded"))
    assert _wrong(one, other) == []
    assert _wrong(one, loaded) == []
    assert len(loaded) == len(one)


def _tensors(step: Path) -> dict[str, Any]:
    found = Contents(str(step))
    return {name: found.tensor(name) for name in found.forms}


def _wrong(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    same = {name for name in one if name in other and torch.equal(one[name], other[name])}
    return sorted(one.keys() - same)


def test_missing_and_unknown_files_of_deepspeed_are_named(
    saved: Path, tmp_path: Path, capsys: Print
) -> None:
    """A rank's file, a model file, a parameter: nothing is written."""
    native, universal, out = (tmp_path / name for name in ("native", "universal", "out"))

    def fresh() -> None:
        for path, name in ((native, "global_step3"), (universal, "global_step3_universal")):
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(saved / "zero2" / name, path)

    fresh()
    (native / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    refused(
        capsys,
        native,
        out,
        "zero_pp_rank_1_mp_rank_00_optim_states.pt is missing",
        "2 data ranks saved",
    )
    (native / "mp_rank_00_model_states.pt").unlink()
    refused(capsys, native, out, "no mp_rank_00_model_states.pt")
    shutil.rmtree(universal / "zero" / "a.bias")
    refused(capsys, universal, out, "zero/a.bias is missing")
    fresh()
    (universal / "zero" / "b.bias" / "exp_avg_sq.pt").unlink()
    refused(capsys, universal, out, "zero/b.bias/exp_avg_sq.pt is missing")
    refused(capsys, saved / "zero1", out, "name one of global_step3")


def test_tensor_parallel_slices_are_joined_as_deepspeed_joins_them(
    tmp_path: Path, capsys: Print
) -> None:
    """Columns, rows, halves, a padded vocabulary, replicas; without their patterns: refused."""
    pytest.importorskip("deepspeed")
    world = {"call": "save_slices", "world": 4, "stage": 2, "folder": str(tmp_path / "ck")}
    worlds.run("deepspeed", [world])
    source = tmp_path / "ck" / "global_step2"
    _universal(source)
    native = converted(source, tmp_path / "native")
    universal = converted(f"{source}_universal", tmp_path / "universal")
    assert diff.main([str(native), str(universal)]) == 0
    forms = Contents(str(native)).forms
    shapes = {name: forms[f"model.{name}.weight"][1] for name in ("columns", "rows", "words")}
    assert shapes == {"columns": (10, 6), "rows": (3, 8), "words": (7, 6)}
    (source / "mp_rank_01_model_states.pt").rename(tmp_path / "kept")
    refused(capsys, source, tmp_path / "out", "model files of 1 ranks, not of 2")
    (tmp_path / "kept").rename(source / "mp_rank_01_model_states.pt")
    file = source / "mp_rank_00_model_states.pt"
    state = torch.load(file, weights_only=False)
    del state["universal_checkpoint_info"]
    torch.save(state, file)
    refused(capsys, source, tmp_path / "out", "no universal_checkpoint_info tells how")


def test_an_unknown_version_and_a_cut_file_are_named(
    saved: Path, tmp_path: Path, capsys: Print
) -> None:
    """The error tells what was found, and which versions are read."""
    source = tmp_path / "universal"
    shutil.copytree(saved / "zero2" / "global_step3_universal", source)
    file = source / "mp_rank_00_model_states.pt"
    state = torch.load(file, weights_only=False)
    state["universal_checkpoint_info"] = {"universal_checkpoint_version": 0.5}
    torch.save(state, file)
    texts = (str(file), "is 0.5", "0.2, 0.3, 0.4 are read", "ds_to_universal")
    refused(capsys, source, tmp_path / "out", *texts)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    refused(capsys, source, tmp_path / "out", f"{file}: no whole archive of torch.save")


def test_a_rank_of_another_save_is_refused(saved: Path, tmp_path: Path, capsys: Print) -> None:
    """Its flat partition has another length: the parameter and the files are named."""
    folder = tmp_path / "mixed"
    shutil.copytree(saved / "zero2" / "global_step3", folder)
    names = [f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)]
    shutil.copy(folder / names[0], folder / names[1])
    refused(capsys, folder, tmp_path / "out", "elements are there, of ")


def test_inspect_shows_framework_layout_and_sizes(saved: Path, capsys: Print) -> None:
    """Of a directory of DeepSpeed, as text and as JSON."""
    assert inspect.main(["inspect", str(saved / "zero3" / "global_step3")]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert re.search(r": DeepSpeed 0\.\d+\.\d+, ZeRO-3, data parallel 2, tensor parallel 1,", head)
    assert ", step 3: 28 tensors," in head
    assert inspect.main(["verify", str(saved / "zero3" / "global_step3_universal")]) == 0
    assert "all of it was read" in capsys.readouterr().out


@pytest.fixture(scope="module")
def megatron(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories of Megatron: one bucket, several, tensor parallel; and state without names."""
    pytest.importorskip("megatron.core")
    folder = tmp_path_factory.mktemp("megatron")
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("whole", {"world": 1, "sharding": "fully_reshardable"}),
        ("buckets", {"world": 1, "sharding": "fully_reshardable", "buckets": 1500}),
        ("tensor", {"world": 4, "sharding": "fully_reshardable", "tensor": 2, "gated": True}),
        ("local_buckets", {"world": 1, "sharding": "dp_reshardable", "buckets": 1500}),
        ("local_tensor", {"world": 4, "sharding": "dp_reshardable", "tensor": 2, "gated": True}),
        ("local_alike", {"world": 2, "sharding": "dp_reshardable", "lr": 0.0}),
    ]
    asked = [{"call": "save", "folder": str(folder / name), **kind} for name, kind in kinds]
    for one in asked:
        if one["world"] == 1:
            one["truth"] = f"{one['folder']}.pt"
    worlds.run("megatron", asked)
    return folder


@pytest.mark.parametrize("folder", ["whole", "local_buckets"])
def test_megatrons_state_is_that_of_its_optimizer(
    megatron: Path, tmp_path: Path, folder: str
) -> None:
    """Masters and moments of every parameter under its global key; also found in buckets."""
    found = Contents(str(converted(megatron / folder, tmp_path)))
    truth = torch.load(megatron / f"{folder}.pt")
    assert len(truth) == 29
    for name, states in truth.items():
        layer = re.fullmatch(r"(decoder\.layers)\.(\d+)\.(.+)", name)
        key, index = (f"{layer[1]}.{layer[3]}", int(layer[2])) if layer else (name, None)
        key = key.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
        key = key.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
        assert {"param", "exp_avg", "exp_avg_sq"} <= states.keys()
        for kind, value in states.items():
            there = f"model.{key}" if kind == "param" else f"optimizer.state.{key}.{kind}"
            tensor = found.tensor(there)
            assert torch.equal(tensor if index is None else tensor[index], value), there
    assert found.values["megatron.iteration"] == 3
    assert found.values["optimizer.param_groups.0.lr"] == 1e-2


def test_optimizer_state_cut_at_wrong_offsets_is_refused(
    megatron: Path, tmp_path: Path, capsys: Print
) -> None:
    """Megatron writes it with several buckets; the model alone may be taken."""
    target = tmp_path / "out"
    texts = ("optimizer.state.param.", "masters are not the weight of model.", "0.16 to 0.19")
    refused(capsys, megatron / "buckets", target, *texts)
    assert inspect.main(["verify", str(megatron / "buckets")]) == 7
    found = Contents(str(converted(megatron / "buckets", target, "--model-only")))
    assert {dtype for dtype, _ in found.forms.values()} == {"bfloat16"}


def test_state_without_names_is_that_with_names(
    megatron: Path, tmp_path: Path, capsys: Print
) -> None:
    """Of tensor and data parallel ranks, with gated halves: the weights find it in the buckets."""
    named = str(converted(megatron / "tensor", tmp_path / "named"))
    found = Contents(named)
    assert found.forms["model.decoder.layers.mlp.linear_fc1.weight"] == ("float32", (2, 192, 24))
    local = converted(megatron / "local_tensor", tmp_path / "local")
    assert diff.main([named, str(local)]) == 0
    assert inspect.main(["inspect", str(megatron / "local_tensor")]) == 0
    head = capsys.readouterr().out
    assert "optimizer dp_reshardable, tensor parallel 2, pipeline parallel 1, data" in head


def test_state_that_may_be_of_two_weights_is_refused(
    megatron: Path, tmp_path: Path, capsys: Print
) -> None:
    """Norms of all ones have equal weights: nothing tells whose moments are whose."""
    target = tmp_path / "out"
    texts = ("(dp_reshardable) has no names", " and ", "--dist-ckpt-optim-fully-reshardable")
    error = refused(capsys, megatron / "local_alike", target, *texts)
    assert re.search(r"values of (decoder|final)\S+norm\S+ \(part \d\) and ", error), error
    found = Contents(str(converted(megatron / "local_alike", target, "--model-only")))
    assert {dtype for dtype, _ in found.forms.values()} == {"bfloat16"}


@pytest.mark.slow
def test_no_corruption_of_a_framework_is_read_as_something_else(
    saved: Path, megatron: Path, tmp_path: Path
) -> None:
    """Native files of each stage, universal ones of both kinds, Megatron's."""
    names = ("global_step3", "global_step3_universal")
    sources = [saved / f"zero{stage}" / name for stage in (1, 2, 3) for name in names]
    sources += [megatron / "whole", megatron / "local_buckets"]
    copies = [Path(shutil.copytree(one, tmp_path / str(at))) for at, one in enumerate(sources)]
    seed = random.randrange(10**6)
    refused = damage(copies, 210, seed)
    assert refused > 100, f"seed {seed}: {refused} of 210 were refused"
