"""A reader of a save or a restore opens no module of the training process in vain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpoints.forked_ranks import World, run
from checkpoints.led_nodes import alone
from checkpoints.walks import RESTORE, SAVE
from house.repository import ROOT

pytestmark = pytest.mark.train
_SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")


def ranks(rank, world, *, root, support, steps):
    sys.path.append(support)
    import torch
    import holdfast
    from checkpoints.walks import entered

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    every_step = holdfast.Schedule(memory_every=1, storage_every=1)
    flash = holdfast.Checkpointer(root, model=model, optimizer=optimizer, schedule=every_step)
    with entered("holdfast.flash") as found:
        begun = flash.load()
        loading = sorted(found)
        for step in range(begun + 1, begun + steps + 1):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            found.clear()
            flash.step(step)
            flash.wait(step)
        stepping = sorted(found)
    print(json.dumps({"begun": begun, "load": loading, "step": stepping}))
    flash.close()
"""
_BESIDE_A_SAVE = {
    "ids",
    "notices",
    "memory.shard_table",
    "trainer.arguments",
    "trainer.leaves",
    "trainer.memcpy",
    "trainer.rng",
    "trainer.state_dict",
}
"""Modules that run beside the save, and need not be opened: values, and readers of one value."""
_BESIDE_A_RESTORE = {
    "notices",
    "memory.hashes",
    "memory.mmap",
    "memory.shard_table",
    "storage.dcp_metadata",
    "storage.filesystem",
    "trainer.copier",
    "trainer.leaves",
    "trainer.memcpy",
    "trainer.planner",
    "trainer.rng",
}
"""The same of a restore. The copier tells how a tensor lies; the planner locates one."""


@contextmanager
def _server(folder: Path, name: str) -> Iterator[dict[str, str]]:
    """Serve the ranks of a node; yield their environment."""
    with alone(folder / name) as server:
        yield {"HOLDFAST_ARENA": server.path}


def test_a_rank_runs_the_modules_of_its_walks_and_no_others(tmp_path: Path) -> None:
    """A usual save to storage; a load from memory, and one from storage after the node is lost."""
    given = {"root": str(tmp_path / "root"), "support": str(ROOT / "tests/support")}
    with _server(tmp_path, "first") as first, _server(tmp_path, "second") as second:
        worlds = [
            World("ranks", given={**given, "steps": 3}, environment=first),
            World(
                "ranks", given={**given, "steps": 0}, environment={**first, "HOLDFAST_ROUND": "1"}
            ),
            World(
                "ranks", given={**given, "steps": 0}, environment={**second, "HOLDFAST_ROUND": "2"}
            ),
        ]
        told = run(tmp_path, _SCRIPT, worlds)
    saved, memory, storage = ([json.loads(one) for one in world] for world in told)
    assert [one["begun"] for one in saved + memory + storage] == [0, 0, 3, 3, 3, 3]
    for rank in saved:
        assert set(rank["step"]) - _BESIDE_A_SAVE == SAVE.rank
    for from_memory, from_storage in zip(memory, storage, strict=True):
        both = {*from_memory["load"], *from_storage["load"]}
        assert both - _BESIDE_A_RESTORE == RESTORE.rank
