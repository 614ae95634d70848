"""The two sides of the matrix of worlds: one world saves once, another loads what many have saved.

Runs in the ranks that `flash_world` forks. Tensors are cut from a few KiB on, so that the small
model here is laid out as a large one is.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from checkpoints.flash_models import small
from holdfast.flash.checkpointer import Checkpointer
from holdfast.flash.trainer import planner

Digest = Callable[[Any, Any, Any], str]


def _state(world: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    planner.SPLIT_BYTES = 4096  # type: ignore[misc] # what the docstring says
    torch.manual_seed(world["seed"])
    model = small(world["kind"], world["world"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)


def _flash(root: str | None, model: Any, optimizer: Any, scheduler: Any) -> Any:
    return Checkpointer(
        root, model=model, optimizer=optimizer, extra={"scheduler": scheduler}, keep_last=9
    )


def save(world: Mapping[str, Any], pipe: Any, digest: Digest) -> None:
    """Train three steps, save them to memory and storage, and die."""
    model, optimizer, scheduler = _state(world)
    inputs = torch.randn(8, 65, generator=torch.Generator().manual_seed(5))
    with _flash(world["root"], model, optimizer, scheduler) as flash:
        for step in range(1, 4):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            scheduler.step()
            flash.save(step, durable=True)
        flash.wait()
        pipe.send({"saved": digest(model, optimizer, scheduler)})
        os.kill(os.getpid(), signal.SIGKILL)


def load(world: Mapping[str, Any], pipe: Any, digest: Digest) -> None:
    """Load what other worlds saved, one after another, each into what the one before left."""
    state = _state(world)
    found = []
    for number, (root, arena) in enumerate(world["loads"]):
        os.environ["HOLDFAST_ROUND"] = str(world["round"] + number)
        os.environ["HOLDFAST_ARENA"] = arena
        with _flash(root, *state) as flash:
            start = flash.load()
            found.append((start, digest(*state)))
            dist.barrier()  # else one rank's next round would overtake another's question
    pipe.send({"found": found})
