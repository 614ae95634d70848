"""A rank of an elastic replica whose weights count steps: each adds 1 to an element of its own.

Belongs here: the loop of rounds by time, with and without a barrier, and what a rank writes down.
Does not belong here: who is killed and who comes (`elastic_jobs`), what must hold (tests).

The inner optimizer adds 1 to the replica's own element of each unit, and there is no outer one. So
an element of the anchors grows in a round by the replica's weight times its steps since the last:
the sum over all rounds tells if each step has counted once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

SIZE: Final = 16
"""Elements of a unit; more than replicas of a run."""


def place_of(replica: int) -> int:
    """Return a replica's element: neighbours are in unlike shards."""
    return replica * 5 % SIZE


def ledger() -> Any:
    """Return a model of three units of zeros."""
    import torch
    from torch import nn

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(SIZE))

        def forward(self, place: int) -> Any:
            return 1.0 * self.weight[place]  # no view: FSDP2 frees the memory

    class Ledger(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Cell() for _ in range(2))

        def forward(self, place: int) -> Any:
            return self.weight[place] + sum(block(place) for block in self.blocks)

    return Ledger()


def run_rank(folder: Path, replica: int, shard: int, scenario: Mapping[str, Any]) -> None:
    """Be one rank: train until the scenario's file says so, and join the others' last rounds."""
    from local_sgd.elastic_training import is_over, members_of

    members = members_of(folder, replica, shard, scenario)
    make = _under_ddp if scenario.get("wrapped") == "ddp" else _under_fsdp
    with (folder / f"log-{replica}-{shard}").open("w", encoding="utf-8", buffering=1) as log:
        model, optimizer, local = make(members, scenario["config"])
        # Under DDP each rank of a replica has the whole anchors: one of them tells.
        notes = _Notes(local, log, tells=shard == 0 or make is _under_fsdp)
        while not is_over(scenario, folder, min(unit.round for unit in local.units)):
            slow = replica == scenario.get("slow")
            time.sleep(0.4 if slow else scenario["pace"] * (1 + replica % 3))
            (-model(place_of(replica))).backward()
            optimizer.step()
            optimizer.zero_grad()
            notes.after_step()
        local.finish(notes.after_round)
        notes.after_round()
        log.write(json.dumps({"ended": True}) + "\n")


def _under_fsdp(members: Any, config: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return model, optimizer and local SGD."""
    import torch
    from torch.distributed.fsdp import fully_shard

    from holdfast.local_sgd import LocalSGD, LocalSGDConfig, mesh_of

    model: Any = ledger()
    mesh = mesh_of(members, "cpu")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, optimizer, LocalSGD(model, optimizer, members, LocalSGDConfig(**config))


def _under_ddp(members: Any, config: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return model, optimizer and averager."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from holdfast.local_sgd import (
        LocalSGDConfig,
        OuterOptimPeriodicModelAverager,
        StatefulPostLocalSGDOptimizer,
    )

    model = DistributedDataParallel(ledger())
    averager = OuterOptimPeriodicModelAverager(members, LocalSGDConfig(**config))
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, StatefulPostLocalSGDOptimizer(inner, averager), averager


class _Notes:
    """What a rank writes down."""

    def __init__(self, local: Any, log: Any, *, tells: bool) -> None:
        self._local, self._log, self._own = local, log, 0
        self._tells = tells
        """Of anchors."""
        self._rounds = [unit.round for unit in local.units]

    def after_step(self) -> None:
        """Write down a step, and what it ended."""
        self._own += 1
        self._log.write(json.dumps({"own": self._own, "pid": os.getpid()}) + "\n")
        self.after_round()

    def after_round(self) -> None:
        """Write down units that are at another round than before, and how replicas weighed."""
        local = self._local
        for one in local.outcomes:
            told = {"unit": one.name, "made": one.round, "weight": max(one.weights)}
            self._log.write(json.dumps(told) + "\n")
        local.outcomes = []
        for number, unit in enumerate(local.units):
            if unit.round != self._rounds[number] and self._tells:
                self._rounds[number] = unit.round
                values = [value for one in unit.anchors.values for value in one.tolist()]
                told = {"unit": unit.name, "at": unit.round, "anchor": values}
                self._log.write(json.dumps(told) + "\n")
        self._log.write(json.dumps({"round": min(unit.round for unit in local.units)}) + "\n")
