"""A world that saves every step while it trains on, and then compares each with what it was.

Runs in the ranks that `flash_world` forks. What a step was is noted right after `optimizer.step()`;
what was saved of it is read by torch's own `dcp.load`. Everything that a training script writes
outside of that call is written here too: buffers, an average of the weights, parameters by a hook
of the optimizer and, after `join()`, by hand.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard

from holdfast.flash.trainer.state_dict import collect, parameters

STEPS = 6
KINDS: dict[str, Any] = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
"""AdamW's three ways to take a step."""


class Late:
    """A copy beside training that begins as late as it may: when somebody waits for it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def join(self) -> None:
        self._work()


def run(world: Mapping[str, Any], pipe: Any) -> None:
    """Train, then send the names of what was saved wrongly, each with its step."""
    checkpointer: Any = importlib.import_module("holdfast.flash.checkpointer")
    if world["late"]:
        saving: Any = importlib.import_module("holdfast.flash.trainer.save")
        saving.CopyThread = Late
    _plant(world["plant"])
    torch.manual_seed(3)
    model, average = _model(world["kind"]), _model(world["kind"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **KINDS[world["adamw"]])
    optimizer.register_step_pre_hook(lambda *_: _scale(model, 1.01))
    seen: dict[int, dict[str, Any]] = {}
    inputs = torch.randn(32, 512, generator=torch.Generator().manual_seed(5))
    with checkpointer.Checkpointer(
        world["root"], model=[model, average], optimizer=optimizer, overlap=True, keep_last=99
    ) as flash:
        for step in range(1, STEPS + 1):
            if step % 2:
                if world["plant"] != "join":
                    flash.join()
                _scale(model, 0.9)
            optimizer.zero_grad()
            model(inputs * step).square().mean().backward()
            optimizer.step()
            seen[step] = {name: _local(one).clone() for name, one in _leaves(flash)}
            flash.save(step)
            _follow(average, model)
        flash.wait()
        wrong = [f"step {step}: {name}" for step in seen for name in _differ(flash, step, seen)]
    pipe.send({"wrong": wrong, "compared": sum(map(len, seen.values()))})


def _plant(bug: str) -> None:
    """Let the copy go wrong: `buffers` are copied late too, or nobody waits at the `hook`."""
    saving: Any = importlib.import_module("holdfast.flash.trainer.save")
    collect = saving.collect

    def all_late(*words: Any) -> Any:
        leaves = collect(*words)
        leaves.tensors = [dataclasses.replace(leaf, trained=True) for leaf in leaves.tensors]
        return leaves

    if bug == "buffers":
        saving.collect = all_late
    if bug == "hook":
        saving.Saver._watch_optimizers = lambda _: None


def _model(kind: str) -> Any:
    model = nn.Sequential(
        nn.Linear(512, 1021), nn.BatchNorm1d(1021), nn.ReLU(), nn.Linear(1021, 64)
    )
    if kind == "fsdp":
        fully_shard(model[0])
        fully_shard(model)
    return model


def _local(tensor: Any) -> Any:
    return getattr(tensor, "_local_tensor", tensor).detach()


def _leaves(flash: Any) -> list[tuple[str, Any]]:
    leaves = collect(flash._parts, int(os.environ["RANK"]))
    return [(leaf.name, leaf.tensor) for leaf in leaves.tensors]


def _sharded(model: Any) -> list[Any]:
    return [_local(holder[key]) for _, holder, key in parameters(model)]


def _scale(model: Any, factor: float) -> None:
    for one in _sharded(model):
        one.mul_(factor)


def _follow(average: Any, model: Any) -> None:
    for mine, its in zip(_sharded(average), _sharded(model), strict=True):
        mine.lerp_(its, 0.1)


def _differ(flash: Any, step: int, seen: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return the names of what a committed step has otherwise than it was."""
    names = dict(_leaves(flash))
    read = {name: torch.zeros_like(names[name]) for name in seen[step]}
    alone = not torch.distributed.is_initialized()
    dcp.load(read, checkpoint_id=f"{flash._root}/step_{step}", no_dist=alone)
    return [name for name, was in seen[step].items() if not torch.equal(_local(read[name]), was)]
