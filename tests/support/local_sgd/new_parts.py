"""A framework and a trigger that no user has, each as short as a new one can be.

Belongs here: plain tensors that are moved by hand, and rounds after 1, 2, 4, 8 ... steps. Does not
belong here: what is expected of them (tests/local_sgd/process/test_new_parts.py).

Runs in the ranks of `replica_world`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.driver.framework import Framework
from holdfast.local_sgd.driver.replicas import FixedMembers
from holdfast.local_sgd.policies.schedule import Boundary
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.inner_state import TorchInnerState
from holdfast.local_sgd.sync.unit_sync import UnitSync
from holdfast.local_sgd.sync.units import Unit
from holdfast.local_sgd.triggers.trigger import BySteps, Replicas


class Tensors(Framework):
    """A framework whose weights are plain tensors, which a script moves by itself."""

    def __init__(self, tensors: Sequence[torch.Tensor], config: LocalSGDConfig) -> None:
        """Take the tensors, of which each is a unit."""
        self.units = [
            Unit(f"tensor {number}", functools.partial(tuple, (one,)))
            for number, one in enumerate(tensors)
        ]
        self.inner = TorchInnerState(lambda number: [tensors[number]], lambda: len(tensors))
        who = FixedMembers(Group(timeout=60), Group.of_one())
        self.drive(config, None, who, first=self.units[0].name)
        self.driver.start()

    def step(self, by: float) -> None:
        """Move all tensors by a number."""
        self.driver.before_step()
        for unit in self.units:
            for one in unit.tensors():
                one.add_(by)
        self.driver.after_step()


class Doubling(BySteps):
    """A trigger: rounds after 1, 2, 4, 8 ... steps."""

    def stepped(self, steps: int, *, is_made: bool = True) -> Boundary:
        """A round after each power of two."""
        del is_made
        return Boundary.NOTHING if steps & (steps - 1) else Boundary.ROUND


class DoublingTensors(Tensors):
    """The framework with that trigger."""

    def trigger(self, config: LocalSGDConfig, who: Replicas, sync: UnitSync, first: str) -> BySteps:
        """Take the new one, whatever the settings say."""
        del who, sync, first
        return Doubling(config)


def train(world: Mapping[str, Any], pipe: Any) -> None:
    """Move by 1 more than this rank's number in each step; send the first values, by step."""
    rank, kinds = dist.get_rank(), {"steps": Tensors, "doubling": DoublingTensors}
    tensors = [torch.zeros(2), torch.zeros(3)]
    local = kinds[world["trigger"]](tensors, LocalSGDConfig(local_sgd_sync_interval=4))
    values = []
    for _ in range(world["steps"]):
        local.step(rank + 1.0)
        values.append([one[0].item() for one in tensors])
    local.finish()
    pipe.send({"values": values, "end": tensors[0][0].item(), "rounds": local.rounds})
