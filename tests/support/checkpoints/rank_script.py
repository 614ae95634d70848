"""Worlds of ranks that run a script each, without an agent: what ranks have may differ."""

from __future__ import annotations

import os
from pathlib import Path

from house import forks

BEGIN = """
import os, sys, warnings
import torch, torch.distributed as dist
from torch import nn
import holdfast

warnings.simplefilter("ignore")
R, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", f"file://{sys.argv[2]}", rank=R, world_size=WORLD)


def layers(numbers):
    found = nn.Sequential()
    for n in numbers:
        found.add_module(f"l{n}", nn.Linear(4, 4))
    return found


def train(model, optimizer, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4) * (R + 1)).square().sum().backward()
        optimizer.step()


def same(one, other):
    if isinstance(one, torch.Tensor):
        one, other = (getattr(x, "_local_tensor", x) for x in (one, other))
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def say(text):
    print(f"rank {R}: {text}", flush=True)
"""


def ranks(
    tmp_path: Path, script: str, world: int = 2, name: str = "meet", **environment: str
) -> list[str]:
    """Run a script as a world of its own; return what each rank printed, and what it raised.

    name: of the file by which the world meets, another for each. Checkpoints lie in `ck`.
    """
    command = ["-c", BEGIN + script, str(tmp_path / "ck"), str(tmp_path / name)]
    return forks.run_ranks(command, world, env={**os.environ, **environment}, timeout=150)
