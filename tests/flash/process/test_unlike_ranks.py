"""Ranks that do not have the same: what only some have is saved and loaded exactly, or refused."""

from __future__ import annotations

import pytest

from checkpoints.forked_ranks import World, run

pytestmark = [pytest.mark.train, pytest.mark.timeout(600)]

SCRIPT = """
import logging, warnings
from collections import OrderedDict
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh
import holdfast
from checkpoints.small_models import same

warnings.simplefilter("ignore")
logging.getLogger("holdfast").setLevel("ERROR")  # that there is no agent


def layers(numbers):
    return nn.Sequential(OrderedDict((f"l{n}", nn.Linear(4, 4)) for n in numbers))


def stage(rank, seed, mesh):
    torch.manual_seed(seed + rank)
    model = layers([2 * rank, 2 * rank + 1])
    fully_shard(model, mesh=mesh["dp"])
    return model


def build_all(rank, seed, mesh):
    model = stage(rank, seed, mesh)
    return model, torch.optim.AdamW(model.parameters())


def build(rank, seed, mesh):
    model = stage(rank, seed, mesh)
    groups = [{"params": list(layer.parameters()), "lr": 0.5 + n} for n, layer in enumerate(model)]
    return model, torch.optim.AdamW(groups[: 2 - rank])


def stages(rank, world, root):
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "dp"))
    for make in (build_all, build):
        model, optimizer = make(rank, 0, mesh)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 4) * (rank + 1)).square().sum().backward()
            optimizer.step()
        path = f"{root}/{make.__name__}"
        with holdfast.Checkpointer(path, model=model, optimizer=optimizer) as flash:
            flash.load()
            flash.save(1)
        other, fresh = make(rank, 7, mesh)
        with holdfast.Checkpointer(path, model=other, optimizer=fresh) as flash:
            assert flash.load() == 1
        assert same(model.state_dict(), other.state_dict())
        assert same(optimizer.state_dict(), fresh.state_dict())
        assert len(fresh.state) == len(optimizer.state)
        print(f"{make.__name__} is exact")


def in_one_process(rank, world, root):
    model = layers(range(4))
    optimizer = torch.optim.AdamW(model.parameters())
    path = f"{root}/build_all"
    with holdfast.Checkpointer(path, model=model, optimizer=optimizer) as flash:
        print(f"loaded {flash.load()} with {len(optimizer.state)} states")


def part(rank, seed):
    torch.manual_seed(seed)
    model = nn.ModuleDict({"router": nn.Linear(4, 4)})
    torch.manual_seed(seed + rank)
    model.update({f"e{2 * rank + i}": nn.Linear(4, 4) for i in range(2)})
    model.shared = nn.ParameterDict({"s": nn.Parameter(torch.ones(1))} if rank < 2 else {})
    return model, torch.optim.AdamW(model.parameters())


def experts(rank, world, root, meets):
    model, optimizer = part(rank, 0)
    extra = {f"k{i}": [i, "book"] for i in range(4)} if rank == 0 else {}
    start = {key: list(value) for key, value in extra.items()}
    with holdfast.Checkpointer(root, model=model, optimizer=optimizer, extra=extra) as flash:
        if meets == "load":
            flash.load()
        for parameter in model.parameters():  # as ranks of one group would have it
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        flash.save(1)
    other, fresh = part(rank, 7)
    extra = dict.fromkeys(extra)
    with holdfast.Checkpointer(root, model=other, optimizer=fresh, extra=extra) as flash:
        assert flash.load() == 1
    assert same(model.state_dict(), other.state_dict())
    assert same(optimizer.state_dict(), fresh.state_dict())
    assert extra == start, extra
    print("exact")


def shapes(rank, world, root):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 5 + rank))
    try:
        holdfast.Checkpointer(root, model=model).load()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Run all worlds without an agent. Return the output of each world's ranks."""
    folder = tmp_path_factory.mktemp("unlike")

    def given(name: str, **more: str) -> dict[str, str]:
        return {"root": str(folder / name), **more}

    worlds = {
        "stages": World("stages", 2, given("stages")),
        "in one process": World("in_one_process", 1, given("stages")),
        "load": World("experts", 3, given("load", meets="load")),
        "save": World("experts", 3, given("save", meets="save")),
        "shapes": World("shapes", 2, given("shapes")),
    }
    return dict(zip(worlds, run(folder, SCRIPT, list(worlds.values())), strict=True))


def test_stages_of_a_pipeline_load_as_they_were_saved(said: dict[str, list[str]]) -> None:
    """FSDP2 on a part of the mesh with AdamW, groups that are not alike too; and in one process."""
    assert said["stages"] == ["build_all is exact\nbuild is exact\n"] * 2
    assert said["in one process"] == ["loaded 1 with 8 states\n"]


@pytest.mark.parametrize("way", ["load", "save"])
def test_what_only_some_ranks_have_is_saved_and_loaded(
    said: dict[str, list[str]], way: str
) -> None:
    """Experts of one rank, a parameter of two of three, an `extra` on rank 0, their moments."""
    assert said[way] == ["exact\n"] * 3


def test_unlike_tensors_of_one_name_are_refused_before_anything_is_saved(
    said: dict[str, list[str]],
) -> None:
    """Two stages whose layers have equal names and other shapes: `load` names them on all ranks."""
    for text in said["shapes"]:
        assert text.startswith("StateError"), text
        assert "model.1.weight is float32 5x4 on rank 0, float32 6x4 on rank 1" in text, text
        assert "per_rank" in text, text
