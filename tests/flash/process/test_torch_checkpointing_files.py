"""Checkpoints of the torch_checkpointing library, made by it, to steps."""

from __future__ import annotations

import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from foreign_checkpoints import worlds
from foreign_checkpoints.conversions import Print, converted, refused
from foreign_checkpoints.corruption import damage
from holdfast.flash.tools import inspect
from holdfast.flash.tools.diff import Contents
from holdfast.flash.tools.formats.torch_checkpointing import Sharding

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]  # as the other frameworks'


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories of four ranks with a resharder and without, and of copies that differ or not."""
    pytest.importorskip(
        "torch_checkpointing", reason="the library that writes these files is not installed"
    )
    folder = tmp_path_factory.mktemp("torch_checkpointing")
    cut: dict[str, Any] = {"call": "save", "world": 4, "truth": str(folder / "truth.pt")}
    copies: dict[str, Any] = {"call": "save_copies", "world": 2}
    asked = [
        cut | {"folder": str(folder / "cut")},
        cut | {"folder": str(folder / "parts"), "resharder": False},
        copies | {"folder": str(folder / "copies")},
        copies | {"folder": str(folder / "others"), "differ": True},
    ]
    worlds.run("torch_checkpointing", asked)
    return folder


def test_parts_of_ranks_become_whole_tensors(saved: Path, tmp_path: Path, capsys: Print) -> None:
    """Every placement, also uneven, strided and by boxes; moments under their parameters' names."""
    step = converted(saved / "cut", tmp_path / "ck")
    assert "loader, which differs between ranks" in capsys.readouterr().out
    found, truth = Contents(str(step)), torch.load(saved / "truth.pt")
    for name, tensor in truth["model"].items():
        assert torch.equal(found.tensor(f"model.{name}"), tensor), name
    for name, tensor in truth["optimizer"].items():
        assert torch.equal(found.tensor(f"optimizer.state.{name}"), tensor), name
    assert len(found.forms) == len(truth["model"]) + len(truth["optimizer"]) + 2
    assert found.values["optimizer.param_groups.0.lr"] == 0.1
    assert found.values["extra.shared"] == {"a": [1, (2.5, None)]}
    assert inspect.main(["inspect", str(saved / "cut")]) == 0
    assert ": torch_checkpointing, 5 items of 4 ranks, step 40: " in capsys.readouterr().out


def test_copies_of_ranks_are_compared(saved: Path, tmp_path: Path, capsys: Print) -> None:
    """Without a resharder: equal ones are read, others and parts are refused by name."""
    step = converted(saved / "copies", tmp_path / "ck", "--step", "1")
    assert "optimizer.state.0.weight.exp_avg" in Contents(str(step)).forms
    for folder, text in (("others", "differs from"), ("parts", "is a DTensor's part")):
        refused(capsys, saved / folder, tmp_path / folder, "save with a resharder", text)


def test_a_missing_file_and_an_unknown_version_are_named(
    saved: Path, tmp_path: Path, capsys: Print
) -> None:
    """And a rank's file of another save; nothing is written."""
    out, source = tmp_path / "out", Path(shutil.copytree(saved / "cut", tmp_path / "cut"))
    (source / "model_3.pt").rename(tmp_path / "kept")
    refused(capsys, source, out, f"{source}/model_3.pt is missing")
    shutil.copy(source / "model_0.pt", source / "model_3.pt")
    refused(capsys, source, out, "copy files of one save")
    (tmp_path / "kept").rename(source / "model_3.pt")
    metadata = pickle.loads((source / "metadata.pkl").read_bytes())  # noqa: S301 - ours
    (source / "metadata.pkl").write_bytes(pickle.dumps(metadata | {"version": "3.0"}))
    refused(capsys, source, out, "version '3.0'; 2.0 is read")
    layouts = metadata["metadata"]["model"]["rank_to_layout_info"]
    kind = {"type": "TorchSerialization"}
    layouts[1] = {"file_path": "../kept", "serialization_format": kind}
    (source / "metadata.pkl").write_bytes(pickle.dumps(metadata))
    refused(capsys, source, out, "'../kept' lies outside the directory")


@pytest.mark.slow
def test_no_corruption_is_read_as_something_else(saved: Path, tmp_path: Path) -> None:
    """Of `metadata.pkl`, which has no checksum, and of the ranks' files."""
    names = ("cut", "copies")
    sources = [Path(shutil.copytree(saved / name, tmp_path / name)) for name in names]
    seed = random.randrange(10**6)
    refused = damage(sources, 100, seed)
    assert refused > 50, f"seed {seed}: {refused} of 100 were refused"


def test_boxes_of_placements_are_those_of_torch() -> None:
    """On random meshes, shapes and placements: every rank's box, or a refusal by name."""
    import torch.distributed.tensor.placement_types as kinds
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

    seed = random.randrange(10**6)
    chosen, compared = random.Random(seed), 0
    for _ in range(500):
        shape = [chosen.randrange(1, 13) for _ in range(chosen.randrange(1, 4))]
        mesh = [chosen.randrange(1, 4) for _ in range(chosen.randrange(1, 4))]
        placed = [_placement(chosen, len(shape)) for _ in mesh]
        there = [
            kinds.Replicate()
            if one["type"] == "Replicate"
            else kinds.Shard(one["dim"])
            if one["type"] == "Shard"
            else kinds._StridedShard(one["dim"], split_factor=one["split_factor"])
            for one in placed
        ]
        world = 1
        for size in mesh:
            world *= size
        data = {"dtype": "torch.float32", "global_shape": shape, "placements": placed}
        spec = {"mesh_spec": {"mesh_shape": mesh, "mesh_data": [*range(world)]}}
        packed = {"type": "DTensorShardingMetadata", "data": data | spec}
        try:
            found = Sharding.of(packed, range(world))
        except ValueError as error:
            assert "strided" in str(error)  # noqa: PT017 - a refusal is right too
            continue
        for rank in range(world):
            left, at = rank, list[int]()
            for size in reversed(mesh):
                left, index = divmod(left, size)
                at.insert(0, index)
            sizes, offsets = _compute_local_shape_and_global_offset(shape, mesh, at, there)
            (box,) = found.boxes(rank)
            said = f"seed {seed}: {shape} {mesh} {placed} {at}"
            assert box.sizes == tuple(sizes), said
            assert 0 in box.sizes or box.offsets == tuple(offsets), said
            compared += 1
    assert compared > 500


def _placement(chosen: random.Random, dims: int) -> dict[str, Any]:
    match chosen.randrange(4):
        case 0:
            return {"type": "Replicate"}
        case 1:
            split = chosen.randrange(2, 4)
            return {"type": "StridedShard", "dim": chosen.randrange(dims), "split_factor": split}
        case _:
            return {"type": "Shard", "dim": chosen.randrange(dims)}
