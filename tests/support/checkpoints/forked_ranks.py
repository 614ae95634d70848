"""Worlds of forked ranks, one after another: a process imports torch once and runs a script.

Run as a script: `forked_ranks.py FOLDER`, with the script and its worlds as JSON on standard input.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from house import forks

SUPPORT = Path(__file__).parents[1]
_WORLD_SECONDS = 120


@dataclass(frozen=True)
class World:
    """One function of a script, called by each rank with its number and the world's size."""

    run: str
    ranks: int = 2
    given: dict[str, Any] = field(default_factory=dict)
    """Further arguments, by name."""
    environment: dict[str, str] = field(default_factory=dict)


def run(folder: Path, script: str, worlds: Sequence[World]) -> list[list[str]]:
    """Run the worlds in their order; return what the ranks of each printed, errors included."""
    asked = json.dumps({"script": script, "worlds": [asdict(world) for world in worlds]})
    done = forks.run(
        [__file__, str(folder)],
        given=asked,
        timeout=_WORLD_SECONDS * len(worlds),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SUPPORT)},
    )
    assert done.returncode == 0, done.stderr
    return [
        [(folder / f"world_{number}_{rank}").read_text() for rank in range(world.ranks)]
        for number, world in enumerate(worlds)
    ]


def _serve(folder: Path) -> None:
    import torch
    import torch._dynamo  # what the first optimizer imports: a second, in each rank
    import torch.distributed.checkpoint
    import torch.distributed.fsdp

    import holdfast.flash.checkpointer
    import holdfast.flash.dcp  # noqa: F401 - forked ranks find it imported

    torch.set_num_threads(1)
    asked = json.load(sys.stdin)
    context = multiprocessing.get_context("fork")
    for number, fields in enumerate(asked["worlds"]):
        world = World(**fields)
        ranks = [
            context.Process(target=_rank, args=(folder, asked["script"], number, world, rank))
            for rank in range(world.ranks)
        ]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join(_WORLD_SECONDS)
            if one.exitcode is None:
                one.kill()


def _rank(folder: Path, script: str, number: int, world: World, rank: int) -> None:
    import torch.distributed as dist

    sys.stdout = sys.stderr = (folder / f"world_{number}_{rank}").open("w", buffering=1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world.ranks),
        "LOCAL_WORLD_SIZE": str(world.ranks),
        **world.environment,
    }
    code = 1
    try:
        meet = f"file://{folder}/meet_{number}"
        dist.init_process_group("gloo", meet, rank=rank, world_size=world.ranks)
        names: dict[str, Any] = {}
        exec(compile(script, "script", "exec"), names)  # noqa: S102 - a test's own
        names[world.run](rank, world.ranks, **world.given)
        dist.barrier()
        code = 0
    except BaseException:  # noqa: BLE001 - it is what the test is to see
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
