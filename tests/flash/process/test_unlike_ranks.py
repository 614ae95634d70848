"""Ranks that do not have the same: what only some have is saved and loaded exactly, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints.rank_script import ranks

pytestmark = [pytest.mark.train, pytest.mark.timeout(200)]

STAGES = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh

mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "dp"))


def build(seed):
    torch.manual_seed(seed + R)
    stage = layers([2 * R, 2 * R + 1])
    fully_shard(stage, mesh=mesh["dp"])
    groups = [{"params": list(layer.parameters()), "lr": 0.5 + n} for n, layer in enumerate(stage)]
    return stage, torch.optim.AdamW(groups[: 2 - R])


def build_all(seed):
    torch.manual_seed(seed + R)
    stage = layers([2 * R, 2 * R + 1])
    fully_shard(stage, mesh=mesh["dp"])
    return stage, torch.optim.AdamW(stage.parameters())


for make in (build_all, build):
    stage, optimizer = make(0)
    train(stage, optimizer)
    root = sys.argv[1] + make.__name__
    with holdfast.Checkpointer(root, model=stage, optimizer=optimizer) as flash:
        flash.load()
        flash.save(1)
    other, fresh = make(7)
    with holdfast.Checkpointer(root, model=other, optimizer=fresh) as flash:
        assert flash.load() == 1
    assert same(stage.state_dict(), other.state_dict())
    assert same(optimizer.state_dict(), fresh.state_dict())
    assert len(fresh.state) == len(optimizer.state)
    say(f"{make.__name__} is exact")
"""

WHOLE = """
model = layers(range(4))
optimizer = torch.optim.AdamW(model.parameters())
with holdfast.Checkpointer(sys.argv[1] + "build_all", model=model, optimizer=optimizer) as flash:
    say(f"loaded {flash.load()} with {len(optimizer.state)} states")
"""


def test_stages_of_a_pipeline_load_as_they_were_saved(tmp_path: Path) -> None:
    """FSDP2 on a part of the mesh with AdamW, groups that are not alike too; and in one process."""
    for rank, text in enumerate(ranks(tmp_path, STAGES)):
        assert f"rank {rank}: build_all is exact" in text, text
        assert f"rank {rank}: build is exact" in text, text
    (alone,) = ranks(tmp_path, WHOLE, world=1, name="alone")
    assert "loaded 1 with 8 states" in alone, alone


EXPERTS = """
def build(seed):
    torch.manual_seed(seed)
    model = nn.ModuleDict({"router": nn.Linear(4, 4)})
    torch.manual_seed(seed + R)
    model.update({f"e{2 * R + i}": nn.Linear(4, 4) for i in range(2)})
    model.shared = nn.ParameterDict({"s": nn.Parameter(torch.ones(1))} if R < 2 else {})
    return model, torch.optim.AdamW(model.parameters())


model, optimizer = build(0)
extra = {f"k{i}": [i, "book"] for i in range(4)} if R == 0 else {}
start = {key: list(value) for key, value in extra.items()}
with holdfast.Checkpointer(sys.argv[1], model=model, optimizer=optimizer, extra=extra) as flash:
    if sys.argv[2].endswith("load"):
        flash.load()
    for parameter in model.parameters():  # as ranks of one group would have it
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    flash.save(1)
other, fresh = build(7)
extra = dict.fromkeys(extra)
with holdfast.Checkpointer(sys.argv[1], model=other, optimizer=fresh, extra=extra) as flash:
    assert flash.load() == 1
assert same(model.state_dict(), other.state_dict())
assert same(optimizer.state_dict(), fresh.state_dict())
assert extra == start, extra
say("exact")
"""


@pytest.mark.parametrize("way", ["load", "save"])
def test_what_only_some_ranks_have_is_saved_and_loaded(tmp_path: Path, way: str) -> None:
    """Experts of one rank, a parameter of two of three, an `extra` on rank 0, their moments."""
    for rank, text in enumerate(ranks(tmp_path, EXPERTS, world=3, name=f"meet-{way}")):
        assert f"rank {rank}: exact" in text, text


def test_unlike_tensors_of_one_name_are_refused_before_anything_is_saved(tmp_path: Path) -> None:
    """Two stages whose layers have equal names and other shapes: `load` names them on all ranks."""
    script = """
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 5 + R))
try:
    holdfast.Checkpointer(sys.argv[1], model=model).load()
except Exception as error:
    say(f"{type(error).__name__}: {error}")
"""
    for rank, text in enumerate(ranks(tmp_path, script)):
        assert f"rank {rank}: StateError" in text, text
        assert "model.1.weight is float32 5x4 on rank 0, float32 6x4 on rank 1" in text, text
        assert "per_rank" in text, text
