"""The example of docs/contributing/a-framework.md: a framework of one's own, with flat ranges."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from checkpoints.forked_ranks import World, run
from house.repository import ROOT

pytestmark = pytest.mark.train
PAGE = ROOT / "docs/contributing/a-framework.md"
_RANKS = """
import json, os, warnings
import holdfast

warnings.simplefilter("ignore")


def trained(rank, world, *, root, steps, odd=0):
    torch.manual_seed(0 if steps else 1)  # a world that only loads begins from other weights
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3 + odd))
    optimizer = FlatSgd(model)
    flash = holdfast.Checkpointer(root, shards=FlatShards(model, optimizer))
    try:
        begun = flash.load()
    except holdfast.RestoreError as error:
        total = sum(float(one.sum()) for one in model.parameters())
        print(json.dumps({"refused": str(error), "sum": total}))
        return
    for step in range(begun + 1, begun + steps + 1):
        model.zero_grad()
        model(torch.arange(10.0).view(2, 5) * step).square().mean().mul(1e-3).backward()
        optimizer.step()
        flash.save(step)
    flash.wait()
    weights = {name: one.tolist() for name, one in model.named_parameters()}
    momentum = optimizer.state.get("momentum", torch.zeros(0)).tolist()
    print(json.dumps({"begun": begun, "weights": weights, "momentum": momentum}))
    flash.close()


def as_ddp(rank, world, *, root):
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    flash = holdfast.Checkpointer(root, model=torch.nn.parallel.DistributedDataParallel(model))
    begun = flash.load()
    weights = {name: one.tolist() for name, one in model.named_parameters()}
    print(json.dumps({"begun": begun, "weights": weights}))
    flash.close()
"""


def _script() -> str:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    example: str = blocks[0]
    return example + _RANKS


def _run(folder: Path, worlds: list[World]) -> list[list[Any]]:
    """Return what each rank of each world told in its last line."""
    return [
        [json.loads(printed.splitlines()[-1]) for printed in world]
        for world in run(folder, _script(), worlds)
    ]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_pages_example_saves_and_loads_in_worlds_of_any_size(tmp_path: Path) -> None:
    """Worlds of 3, 2, 4 and 1 continue from each other; DDP and plain `dcp.load` read the step."""
    given = {"root": str(tmp_path / "root")}
    worlds = [
        World("trained", ranks=3, given={**given, "steps": 2}),
        *(World("trained", ranks=ranks, given={**given, "steps": 0}) for ranks in (2, 4, 1)),
        World("as_ddp", given=given),
    ]
    told = _run(tmp_path, worlds)
    first = told[0][0]
    flat = [number for rank in told[0] for number in rank["momentum"]]
    for world in told[1:4]:
        for rank in world:
            assert (rank["begun"], rank["weights"]) == (2, first["weights"])
        loaded = [number for rank in world for number in rank["momentum"]]
        size = min(len(loaded), len(flat))
        assert loaded[:size] == flat[:size]
        assert not any(loaded[size:] + flat[size:]), "padding"
    assert any(flat)
    assert told[4][0] == {"begun": 2, "weights": first["weights"]}
    weight = {"model": {"0.weight": torch.zeros(7, 5)}}
    dcp.load(weight, checkpoint_id=tmp_path / "root/step_2", no_dist=True)
    assert weight["model"]["0.weight"].tolist() == first["weights"]["0.weight"]


def test_a_run_that_is_continued_by_another_world_is_the_unbroken_run(tmp_path: Path) -> None:
    """Four steps of a world of 2 give the weights of two steps each, of worlds of 2 and of 3."""
    worlds = [
        World("trained", given={"root": str(tmp_path / "whole"), "steps": 4}),
        World("trained", given={"root": str(tmp_path / "parts"), "steps": 2}),
        World("trained", ranks=3, given={"root": str(tmp_path / "parts"), "steps": 2}),
    ]
    told = _run(tmp_path, worlds)
    unbroken, continued = told[0][0]["weights"], told[2][0]["weights"]
    assert told[2][0]["begun"] == 2
    for name, values in unbroken.items():
        assert torch.allclose(torch.tensor(values), torch.tensor(continued[name]), atol=1e-6)


def test_another_model_is_refused_with_the_name_and_both_shapes(tmp_path: Path) -> None:
    """And its weights stay as they were."""
    given = {"root": str(tmp_path / "root")}
    worlds = [
        World("trained", given={**given, "steps": 1}),
        World("trained", given={**given, "steps": 0, "odd": 1}),
        World("trained", given={"root": str(tmp_path / "none"), "steps": 0, "odd": 1}),
    ]
    _, refused, fresh = _run(tmp_path, worlds)
    said = " ".join(rank["refused"] for rank in refused)
    assert "model.1.weight is float32 (4, 7), in the checkpoint ('float32', (3, 7))" in said
    assert "rank 1 refused what was to be restored, so no rank takes it" in said
    total = sum(float(torch.tensor(one).sum()) for one in fresh[0]["weights"].values())
    assert refused[0]["sum"] == pytest.approx(total, abs=1e-5)
