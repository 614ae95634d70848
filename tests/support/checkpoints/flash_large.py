"""A world whose copies take long enough to be killed in: two FSDP2 shards of 64 MiB each.

Runs in the ranks that `flash_world` forks. Every number of the state is the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard

from holdfast.flash.checkpointer import Checkpointer

WIDTH = 3344
"""Of a square of weights: with AdamW's two moments 128 MiB."""


def run(world: Mapping[str, Any], pipe: Any) -> None:
    """Say what is loaded, if anything is to be; then save every step to memory until killed."""
    model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    state = optimizer.state[model.weight]
    tensors = [model.weight.detach(), state["exp_avg"], state["exp_avg_sq"]]
    flash = Checkpointer(
        world["root"], model=model, optimizer=optimizer, overlap=world.get("overlap", False)
    )
    step = 0
    if world["load"]:
        step = flash.load()
        seen = {float(x) for one in tensors for x in one.to_local().unique()}
        pipe.send({"start": step, "seen": sorted(seen)})
        flash.close()
        return
    while True:
        step += 1
        flash.join()
        for one in tensors:
            one.to_local().fill_(step)
        flash.save(step, durable=False)
