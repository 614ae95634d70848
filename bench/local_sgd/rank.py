"""One measured rank: carries out the cases of a world, and rank 0 writes what they measured.

Run as `python -m bench.local_sgd.rank world.json`, by `worlds.run`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import english_text
from bench.local_sgd import results as r
from bench.local_sgd.plan import LENGTHS, NESTEROV, SLOWER
from bench.local_sgd.ways import WayTraining, training_of
from bench.local_sgd.worlds import INTERFACE
from holdfast.local_sgd import LocalSGD, LocalSGDConfig, OuterOptimizerConfig
from with_local_sgd.llama_model import CONTEXT, Llama, next_byte_loss

_WIDTH: Final = 512
_LAYERS: Final = 7
"""1.84 million parameters, 7.4 MB in fp32, as the measured baselines have."""
_LR: Final = 2e-3
_BATCH: Final = 8
_AT_ONCE: Final = 256
"""Windows that a validation takes at once."""
_FIRST: Final = 256
"""Windows of 728 on which a disturbance is judged."""


def main() -> None:
    """Carry out the world that the command line names."""
    file = Path(sys.argv[1])
    world = json.loads(file.read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    measure = _MEASURES[world["row"]]
    for case in world["cases"]:
        dist.barrier()
        found = measure(world, case)
        if dist.get_rank() == 0:
            group, _, way = case["name"].rpartition("|")
            line = r.Measured(
                row=world["row"],
                group=group or world["group"],
                way=way,
                turn=world["turn"],
                values=found,
                load=os.getloadavg()[0],
            )
            with (file.parent / "lines").open("a") as out:
                out.write(json.dumps(dataclasses.asdict(line)) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def _dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)))


def _step(training: WayTraining, world: Mapping[str, Any]) -> None:
    """Take one step whose computation is slept."""
    time.sleep(world["compute_ms"] / 1000)
    loss = training.model(torch.ones(2, _WIDTH)).square().mean()
    training.optimizer.zero_grad()
    loss.backward()
    training.optimizer.step()


def _sent() -> int:
    path = Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes")
    return int(path.read_text()) if path.exists() else 0


def by_steps(world: Mapping[str, Any], case: Mapping[str, Any]) -> dict[str, float]:
    """Return bytes and seconds of a step; the first steps, which set up, do not count."""
    training = training_of(case, _dense(), lr=1e-4)
    for _ in range(case["interval"] if case["kind"] != "ddp" else 1):
        _step(training, {"compute_ms": 0.0})  # buckets and buffers are made
    dist.barrier()
    before, begin = _sent(), time.perf_counter()
    for _ in range(case["steps"]):
        _step(training, world)
    seconds = (time.perf_counter() - begin) / case["steps"]
    sent = (_sent() - before) / case["steps"]
    most = torch.tensor([seconds, sent], dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    training.close()
    return {r.SECONDS: float(most[0]), r.SENT: float(most[1])}


def losses(world: Mapping[str, Any], case: Mapping[str, Any]) -> dict[str, float]:
    """Return the validation loss after training; of a disturbance before and after its round."""
    del world
    torch.manual_seed(case["seed"])
    training, wild = training_of(case, Llama(), lr=_LR), case["wild"]
    found: dict[str, float] = {}
    for step in range(case["steps"]):
        if wild and step == wild["step"]:
            found[r.BEFORE] = _validation(training.model, _FIRST)
        _disturb(training, wild, step, case["interval"])
        loss = _training_loss(training.model, step, case["seed"])
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        if not wild and step + 1 in LENGTHS:
            found[r.AFTER_STEPS.format(step + 1)] = _validation(training.model)
    finite = all(bool(one.isfinite().all()) for one in training.model.parameters())
    least = torch.tensor([float(finite)])
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    if wild:
        found[r.AFTER] = _validation(training.model, _FIRST)
    training.close()
    return {**found, r.FINITE: float(least)}


def beside_slow(world: Mapping[str, Any], case: Mapping[str, Any]) -> dict[str, float]:
    """Return steps a second of fast replicas and of all under FSDP2, where the last one is slow.

    Computing is a sleep, so the figures say what a way of agreement has replicas wait. By time the
    slow one makes as many steps as it can in the others' time.
    """
    ranks, steps, pace = world["ranks"], case["steps"], world["compute_ms"] / 1000
    mesh = init_device_mesh("cpu", (ranks, 1), mesh_dim_names=("replicate", "shard"))
    model: Any = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
    fully_shard(model, mesh=mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = LocalSGDConfig(**case["config"])
    local = LocalSGD(
        model, optimizer, mesh, config, OuterOptimizerConfig(torch.optim.SGD, NESTEROV)
    )
    if dist.get_rank() == ranks - 1:
        pace *= SLOWER
        steps //= SLOWER if config.use_async else 1
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
    mine = torch.tensor([steps / (time.monotonic() - begun), rounds], dtype=torch.float64)
    local.finish()
    local.detach()
    told = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(told, mine)
    (*fast, slow), made = ([float(one[at]) for one in told] for at in range(2))
    return {
        r.FAST_STEPS: sum(fast) / len(fast),
        r.ALL_STEPS: sum(fast) + slow,
        "rounds of a fast replica": made[0],
        "of the slow one": made[-1],
    }


def _disturb(training: WayTraining, wild: Mapping[str, Any], step: int, interval: int) -> None:
    if not wild or wild["replica"] not in (dist.get_rank(), -1):
        return
    if wild["factor"] == "nan" and step == wild["step"]:
        with torch.no_grad():
            next(iter(training.model.parameters())).mul_(math.nan)
    elif wild["factor"] != "nan":
        inside = wild["step"] <= step < wild["step"] + interval
        for group in training.inner.param_groups:
            group["lr"] = _LR * (wild["factor"] if inside else 1)


@functools.cache
def _text() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the text to train on, and the one to validate with."""
    training, validation = english_text.split(english_text.read(None), CONTEXT)
    return training, validation


def _training_loss(model: nn.Module, step: int, seed: int) -> torch.Tensor:
    text, _ = _text()
    number = (seed * 100_000 + step) * dist.get_world_size() + dist.get_rank()
    starts = torch.randint(
        len(text) - CONTEXT, (_BATCH,), generator=torch.Generator().manual_seed(number)
    )
    found: torch.Tensor = next_byte_loss(model, english_text.windows(text, starts, CONTEXT))
    return found


@torch.no_grad()
def _validation(model: nn.Module, most: int | None = None) -> float:
    """Return the mean over the replicas of their loss on the text that none trains on."""
    inner = getattr(model, "module", model)  # an evaluation alone needs no DDP
    _, text = _text()
    starts = english_text.even_starts(text, CONTEXT)[:most]
    losses = [
        next_byte_loss(inner, english_text.windows(text, some, CONTEXT)).double() * len(some)
        for some in starts.split(_AT_ONCE)
    ]
    loss = torch.stack(losses).sum() / len(starts)
    dist.all_reduce(loss)
    return float(loss) / dist.get_world_size()


_MEASURES: Final[Mapping[str, Callable[..., dict[str, float]]]] = {
    r.BYTES: by_steps,
    r.LINKS: by_steps,
    r.SLOW: beside_slow,
    r.LOSS: losses,
    r.ROBUST: losses,
}

if __name__ == "__main__":
    main()
