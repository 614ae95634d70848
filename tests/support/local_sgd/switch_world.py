"""Training with reductions that are slow for a while, and a switch that measures them.

Belongs here: what the ranks of a world do and write down. Does not belong here: what is expected
(tests/local_sgd/process).
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any

from checkpoints.forked_worlds import Jobs, serve
from holdfast_wire.keys import ENV_SYNC_CHOICES
from local_sgd.digests import digest
from local_sgd.fsdp2_facts import mesh_of
from local_sgd.fsdp2_training import configs_of, digests, optimizer_of, run_step
from local_sgd.tiny_model import sharded, tiny_model


class _Link:
    """The all-reduce of torch, slow while `delay` is above 0; counts those of whole units."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.delay, self.count = 0.0, 0
        self._plain: Any = dist.all_reduce
        changed: Any = dist
        changed.all_reduce = self

    def __call__(self, tensor: Any, *given: Any, **named: Any) -> Any:
        if tensor.numel() > 8:  # scalars of the shards and of the switch are smaller
            time.sleep(self.delay)
            self.count += 1
        return self._plain(tensor, *given, **named)


def train(world: Mapping[str, Any], pipe: Any) -> None:
    """Train until the replicas have gone to local steps and back, or for `steps`; tell the way.

    The link is slow until the first change.
    """
    from holdfast.local_sgd import LocalSGD

    mesh = mesh_of(world)
    at = tuple(mesh.get_coordinate())
    model = sharded(tiny_model({}), mesh["shard"], {})
    optimizer, link = optimizer_of(model, world), _Link()
    os.environ[ENV_SYNC_CHOICES] = str(world["file"])
    local = LocalSGD(model, optimizer, mesh, *configs_of(world))
    switch: Any = local.driver.when
    link.delay = world["delay"]
    switch.settings = dataclasses.replace(switch.settings, patience=world["patience"])
    way, reductions = [[0, *_now(switch)]], list[int]()
    left = world["steps"]
    step = 0
    while left:
        time.sleep(world["seconds"])
        before = link.count
        run_step(world, model, optimizer, step, (at[0], at[1]))
        reductions.append(link.count - before)
        step, left = step + 1, left - 1
        if _now(switch) != way[-1][1:]:
            way.append([step, *_now(switch)])
            link.delay = 0.0
            if switch.is_sync:
                left = world["after"]
    local.sync()
    pipe.send({"way": way, "reductions": reductions, "rounds": local.rounds})
    pipe.send(
        {
            "end": digests(local),
            "reason": switch.reason,
            "clock": local.clock(),
            "anchors": [unit.has_anchors for unit in local.units],
        }
    )


def train_ddp(world: Mapping[str, Any], pipe: Any) -> None:
    """Train for `steps`; tell the way, the steps with a round, and how a copy would go on."""
    from local_sgd.ddp_replicas import Training

    training, link = Training(world), _Link()
    averager, optim = training.averager, training.optim
    switch: Any = averager.driver.when
    link.delay = world["delay"]
    switch.settings = dataclasses.replace(switch.settings, patience=world["patience"])
    way, rounds, equal = [[0, *_now(switch)]], list[int](), list[str]()
    for step in range(1, world["steps"] + 1):
        time.sleep(world["seconds"])
        before = averager.rounds
        training.step(step)
        if averager.rounds > before:
            rounds.append(step)
            equal.append(digest(training.weights(), {}))
        if _now(switch) != way[-1][1:]:
            way.append([step, *_now(switch)])
            link.delay = 0.0
    begun = switch.agreed
    optim.load_state_dict(optim.state_dict())
    kept = [begun == switch.agreed, averager.clock()["switch"] == switch.state()["switch"]]
    pipe.send({"way": way, "rounds": rounds, "weights": equal, "kept": kept})


def _now(switch: Any) -> list[Any]:
    return [switch.running.mode.value, switch.running.interval]


_JOBS: Jobs = {"train": train, "train ddp": train_ddp}

if __name__ == "__main__":
    serve(_JOBS)
