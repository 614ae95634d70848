"""Steps of replicas beside one that is 4 times slower: `python -m bench.local_sgd.straggler`.

Four replicas of one rank each train a small model under FSDP2. A step's computing is a sleep, so
the figures say what a way of agreement has replicas wait, and nothing of computing. Prints a line
of JSON for each way; `measure` returns the same.

| way | replicas agree |
|---|---|
| ddp | on gradients, in each step |
| edit | each 32 steps |
| a-edit | in the time of 32 fast steps, all together |
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

REPLICAS: Final = 4
STEP: Final = 0.05
"""Seconds of a fast replica's step."""
SLOWER: Final = 4
PERIOD: Final = 32
"""Steps of a round of EDiT; τ of A-EDiT, in steps of a fast replica."""
WAYS: Final = ("ddp", "edit", "a-edit")


def settings_of(way: str, step: float) -> dict[str, Any]:
    """Return the settings of a `LocalSGDConfig`."""
    timed = {
        "use_async": True,
        "local_sgd_sync_time": PERIOD * step,
        "min_total_global_steps": 1,
        "use_step_weight": True,
    }
    ways: dict[str, dict[str, Any]] = {
        "ddp": {"local_sgd_warmup_steps": 1_000_000},
        "edit": {"local_sgd_sync_interval": PERIOD},
        "a-edit": timed,
    }
    return ways[way]


def measure(
    way: str, seconds: float = 10.0, *, step: float = STEP, slower: float = SLOWER
) -> dict[str, Any]:
    """Return steps a second of the fast replicas and of all, by one way of `WAYS`.

    Args:
        way: Name of the way.
        seconds: That a fast replica would train alone.
        step: Seconds of a fast replica's step.
        slower: Times that the last replica is slower.
    """
    settings = settings_of(way, step)
    context = multiprocessing.get_context("spawn")
    counts = [round(seconds / step)] * (REPLICAS - 1)
    uneven = way == "a-edit"
    counts.append(round(seconds / step / slower) if uneven else counts[0])
    paces = [step] * (REPLICAS - 1) + [step * slower]
    if not uneven:  # all make the slow one's steps: as many as it makes in that time
        counts = [max(1, round(one / slower)) for one in counts]
    pipes = [context.Pipe(duplex=False) for _ in range(REPLICAS)]
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(
                target=_rank,
                args=(rank, settings, counts[rank], paces[rank], folder, end),
            )
            for rank, (_, end) in enumerate(pipes)
        ]
        for rank in ranks:
            rank.start()
        for _, end in pipes:
            end.close()
        told = [begin.recv() for begin, _ in pipes]
        for rank in ranks:
            rank.join()
    rates = [count / one["seconds"] for count, one in zip(counts, told, strict=True)]
    return {
        "way": way,
        "fast_steps_a_second": round(sum(rates[:-1]) / (REPLICAS - 1), 2),
        "all_steps_a_second": round(sum(rates), 2),
        "rounds": told[0]["rounds"],
        "rounds_of_the_slow_one": told[-1]["rounds"],
        "counts": counts,
        "load": round(os.getloadavg()[0], 1),
    }


def _rank(
    rank: int, settings: dict[str, Any], steps: int, pace: float, folder: str, pipe: Connection
) -> None:
    """Train on one rank, and tell how long it took."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from holdfast.local_sgd import LocalSGD, LocalSGDConfig, OuterOptimizerConfig

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=REPLICAS
    )
    mesh = init_device_mesh("cpu", (REPLICAS, 1), mesh_dim_names=("replicate", "shard"))
    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    fully_shard(model, mesh=mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    outer = OuterOptimizerConfig(torch.optim.SGD, {"lr": 0.7, "momentum": 0.8, "nesterov": True})
    local = LocalSGD(model, optimizer, mesh, LocalSGDConfig(**settings), outer)
    rounds, batch = 0, torch.randn(4, 64)
    dist.barrier()
    begun = time.monotonic()
    for _ in range(steps):
        time.sleep(pace)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        rounds += bool(local.outcomes)
        local.outcomes = []
    pipe.send({"seconds": time.monotonic() - begun, "rounds": rounds})
    local.finish()
    dist.destroy_process_group()


def main(given: Sequence[str] | None = None) -> None:
    """Measure the ways that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.local_sgd.straggler")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--seconds", type=float, default=10.0, help="of a fast replica alone")
    parser.add_argument("--step", type=float, default=STEP, help="seconds of a fast one's step")
    arguments = parser.parse_args(given)
    for way in arguments.ways:
        print(json.dumps(measure(way, arguments.seconds, step=arguments.step)), flush=True)


if __name__ == "__main__":
    main()
