"""Buffers that differ from rank to rank, as BatchNorm's under DDP: each rank is given its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from checkpoints.flash_world import Keeping
from checkpoints.forked_ranks import World, run
from holdfast.flash.tools.convert import main as convert
from holdfast.flash.tools.diff import main as diff
from holdfast.flash.tools.inspect import main as inspect

pytestmark = [pytest.mark.train, pytest.mark.timeout(600)]

SCRIPT = """
import logging, os, signal, warnings
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import holdfast
from holdfast.flash.trainer import planner

warnings.simplefilter("ignore")
logging.getLogger("holdfast").setLevel("ERROR")  # that there is no agent


def build(seed, broadcast):
    torch.manual_seed(seed)
    inner = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
    inner.register_buffer("table", torch.zeros(128, 200))  # too large to be kept for each rank
    model = DDP(inner, broadcast_buffers=bool(broadcast))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(rank, model, optimizer, numbers):
    for i in numbers:
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(10 * i + rank))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def show(model):
    found = {name: value.tolist() for name, value in model.module.state_dict().items()}
    alone = model.module.eval()(torch.ones(4, 4)).sum().item()
    print(f"{found['1.running_mean'][:2]} {hash(str(found))} {alone}")


def unbroken(rank, world, root, broadcast):
    model, optimizer = build(0, broadcast)
    train(rank, model, optimizer, range(6))
    show(model)


def killed(rank, world, root, broadcast):
    model, optimizer = build(0, broadcast)
    flash = holdfast.Checkpointer(root, model=model, optimizer=optimizer)
    flash.load()
    train(rank, model, optimizer, range(3))
    flash.save(3, durable=not os.environ.get("HOLDFAST_ARENA"))
    flash.wait()
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def resumed(rank, world, root, broadcast):
    model, optimizer = build(7, broadcast)
    with holdfast.Checkpointer(root, model=model, optimizer=optimizer) as flash:
        assert flash.load() == 3
        train(rank, model, optimizer, range(3, 6))
        show(model)


class Counts(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("small", torch.full((5,), float(number)))
        self.register_buffer("alias", self.small)


def save(rank, world, root, older=False):
    if older:  # an older release kept no values of each rank, and compared none
        planner.is_own = lambda leaf: False
        planner._compared = lambda located: ()
    with holdfast.Checkpointer(root, model=Counts(rank + 1)) as flash:
        flash.load()
        flash.save(1)


def load(rank, world, root):
    model = Counts(0)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        with holdfast.Checkpointer(root, model=model) as flash:
            assert flash.load() == 1
    assert model.alias is model.small
    print(f"{model.small.tolist()} {[str(note.message) for note in notes]}")
"""

TIERS = [("storage", 1), ("storage", 0), ("memory", 0)]
FIVE_ONES = "[1.0, 1.0, 1.0, 1.0, 1.0] []\n"
FIVE_TWOS = FIVE_ONES.replace("1", "2")


class Ran:
    """The output of all worlds' ranks and the path of their step."""

    def __init__(self, folder: Path) -> None:
        self.step = folder / "ck" / "step_1"
        worlds = dict(self._worlds(folder))
        with Keeping(folder) as arenas:
            for world in worlds.values():
                if "HOLDFAST_ARENA" in world.environment:
                    world.environment["HOLDFAST_ARENA"] = arenas.path
            texts = run(folder, SCRIPT, list(worlds.values()))
        self.texts = dict(zip(worlds, texts, strict=True))

    def _worlds(self, folder: Path) -> Iterator[tuple[tuple[object, ...], World]]:
        for tier, broadcast in TIERS:
            given = {"root": str(folder / f"{tier}_{broadcast}"), "broadcast": broadcast}
            for number, name in enumerate(("unbroken", "killed", "resumed")):
                arena = {"HOLDFAST_ARENA": "", "HOLDFAST_ROUND": str(number)}
                environment = arena if tier == "memory" else {}
                yield (name, tier, broadcast), World(name, 2, given, environment)
        root = {"root": str(folder / "ck")}
        yield ("save",), World("save", 2, root)
        for size in (1, 2, 3):
            yield ("load", size), World("load", size, root)
        older = {"root": str(folder / "older")}
        yield ("save older",), World("save", 2, {**older, "older": True})
        yield ("load older",), World("load", 2, older)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """All worlds of this module."""
    return Ran(tmp_path_factory.mktemp("buffers"))


@pytest.mark.parametrize(("tier", "broadcast"), TIERS)
def test_a_killed_run_with_batchnorm_goes_on_as_the_unbroken_one(
    ran: Ran, tier: str, broadcast: int
) -> None:
    """Weights, buffers and an evaluation of each rank are bit for bit those of a run without kill.

    With DDP's broadcast of buffers and without it, from storage and from an agent's memory.
    """
    unbroken = ran.texts["unbroken", tier, broadcast]
    assert ran.texts["resumed", tier, broadcast] == unbroken
    assert unbroken[0] != unbroken[1], "each rank has other buffers"
    assert all(len(text.splitlines()) == 1 for text in unbroken), unbroken


def test_each_rank_of_an_equally_large_world_is_given_its_own_buffers(ran: Ran) -> None:
    """Also of a buffer that has two names; nothing is warned of."""
    assert ran.texts["load", 2] == [FIVE_ONES, FIVE_TWOS]


@pytest.mark.parametrize("world", [1, 3])
def test_ranks_of_another_world_are_given_rank_0_s_buffers(ran: Ran, world: int) -> None:
    """All of them, for a smaller and for a larger world, as DDP would broadcast them."""
    assert ran.texts["load", world] == [FIVE_ONES] * world


def test_a_step_without_buffers_of_each_rank_loads_as_it_always_did(ran: Ran) -> None:
    """An older release wrote it: all ranks are given the one value that there is."""
    assert ran.texts["load older",] in ([FIVE_ONES] * 2, [FIVE_TWOS] * 2)


def test_tools_show_whose_buffers_there_are(
    ran: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`inspect` names the rank; `export` has rank 0's in the model, and `import` takes it back."""
    step = ran.step
    assert inspect(["inspect", str(step), "--json"]) == 0
    items = {item["name"]: item for item in json.loads(capsys.readouterr().out)[0]["items"]}
    assert items["model.small"]["ranks"] == [0]
    form = {"dtype": "float32", "shape": [5], "bytes": 20, "ranks": [1]}
    assert items["buffers.rank_1.model.small"] == {"name": "buffers.rank_1.model.small", **form}
    assert "sketches" not in items
    assert inspect(["verify", str(step)]) == 0
    file = tmp_path / "all.pt"
    assert convert(["export", str(step), str(file)]) == 0
    assert convert(["import", str(file), str(tmp_path / "again"), "--step", "1"]) == 0
    assert diff([str(step), str(tmp_path / "again" / "step_1")]) == 0, capsys.readouterr().out
    assert _exported(file) == {"model": 1.0, "rank_0": 1.0, "rank_1": 2.0}


def _exported(file: Path) -> dict[str, float]:
    state = torch.load(file, weights_only=True)
    own = {rank: float(of["model"]["small"][0]) for rank, of in state["buffers"].items()}
    return {"model": float(state["model"]["small"][0]), **own}
