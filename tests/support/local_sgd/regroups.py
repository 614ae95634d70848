"""Changes of members between real ranks whose units stand wherever a test says.

Run as a script; see `forked_worlds`. Each rank is a replica of one shard. `standings` has for each:
rounds (none: it has no anchors), units begun, whether it is new.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from checkpoints.forked_worlds import ForkedWorlds, serve

SIZES = (5, 0, 7)
DELTA = 0.25
"""Of each weight, on each replica."""


class Regroups(ForkedWorlds):
    """The script as seen by a test."""

    script = __file__

    def change(self, standings: list[dict[str, Any]], **world: Any) -> list[dict[str, Any]]:
        """Return what becomes of each replica."""
        return self.run(job="change", world=len(standings), standings=standings, **world)


def change(world: Mapping[str, Any], pipe: Any) -> None:
    """Stand where the world says, carry a change out, and tell what there is."""
    import torch
    import torch.distributed as dist

    from holdfast.local_sgd.config import LocalSGDConfig
    from holdfast.local_sgd.sync.group import Group
    from holdfast.local_sgd.sync.regroup import Regroup, ReplicaState
    from holdfast.local_sgd.sync.units import Outer, Unit

    me = dist.get_rank()
    mine = world["standings"][me]
    outer = Outer(functools.partial(torch.optim.SGD, lr=0.7, momentum=0.8, nesterov=True))
    tensors = [torch.full((size + (mine.get("odd", 0)),), 100.0 + me) for size in SIZES]
    units = [
        Unit(f"unit {number}", functools.partial(tuple, (one,)), outer)
        for number, one in enumerate(tensors)
    ]
    stands = "rounds" in mine
    if stands:
        for unit, rounds in zip(units, mine["rounds"], strict=True):
            _stand(unit, rounds)
    discount = LocalSGDConfig().late_discount
    inner = Inner(mine)
    regroup = Regroup(units, [10 + one for one in range(dist.get_world_size())],
                      (Group(), Group.of_one()), discount, inner=inner.state)  # fmt: skip
    found = regroup.carry_out(
        ReplicaState(
            is_new=mine.get("new", False),
            has_anchors=stands,
            due=mine.get("due", True),
            steps=mine.get("steps", 0),
            begun=frozenset(mine.get("begun", ())),
        ),
        lambda: json.dumps({"from": me}).encode(),
    )
    pipe.send({"moments": inner.moments(), "buffers": inner.buffers()})
    pipe.send({
        "rounds": [unit.round for unit in units],
        "anchors": [unit.anchors.values[0].tolist() for unit in units],
        "weights": [one.tolist() for one in tensors],
        "outer": [_outer_of(unit) for unit in units],
        "again": list(found.plan.again) if found.plan else None,
        "joined": found.joined, "behind": found.behind, "passed": found.passed, "kept": found.kept,
        "steps": found.giving.steps, "due": found.giving.due, "position": found.position.decode(),
    })  # fmt: skip


class Inner:
    """A parameter for each unit, an Adam that has stepped unless the replica is new, and buffers.

    `inner` is the value of all gradients, so moments tell whose they are.
    """

    def __init__(self, mine: Mapping[str, Any]) -> None:
        """Step twice along gradients of `inner`; the buffers are `inner` too."""
        import torch

        from holdfast.local_sgd.sync.inner_state import TorchInnerState

        self._params = [torch.nn.Parameter(torch.ones(size)) for size in SIZES]
        self._model = torch.nn.BatchNorm1d(2)
        self._model.register_buffer("rotary", torch.zeros(2), persistent=False)
        self._optimizer = torch.optim.Adam(self._params)
        slots, units = (lambda unit: [self._params[unit]]), lambda: len(SIZES)
        self.state = TorchInnerState(slots, units, [self._optimizer])
        if "inner" in mine:
            for _ in range(2):
                for one in self._params:
                    one.grad = torch.full_like(one, mine["inner"])
                self._optimizer.step()
            for _, buffer in self._model.named_buffers():
                buffer.fill_(mine.get("buffers", mine["inner"]))
            self.state.add_buffers(self._model)

    def moments(self) -> list[Any]:
        """Return (steps, first moment) of each unit; None: none."""
        states = [self._optimizer.state.get(one) for one in self._params]
        return [one and [one["step"].item(), one["exp_avg"].tolist()] for one in states]

    def buffers(self) -> dict[str, Any]:
        """Return the buffers, named now where the replica is new."""
        self.state.add_buffers(self._model)
        return {name: one.tolist() for name, one in self._model.named_buffers()}


def _stand(unit: Any, rounds: int) -> None:
    """Bring a unit to a round, by outer steps that are alike on all replicas."""
    import torch

    (weights,) = unit.tensors()
    weights.fill_(1.0)
    unit.take_anchors()
    for number in range(rounds):
        unit.anchors.step(torch.full((weights.numel(),), 0.1 * (number + 1)))
        for group in unit.anchors.optimizer.param_groups:
            group["lr"] *= 0.9  # as a script may do
    unit.round = rounds
    unit.anchors.write_weights((weights,))
    weights.sub_(DELTA)


def _outer_of(unit: Any) -> list[Any]:
    optimizer = unit.anchors.optimizer
    kept = optimizer.state.get(unit.anchors.values[0], {})
    momentum = kept.get("momentum_buffer")
    return [optimizer.param_groups[0]["lr"], None if momentum is None else momentum.tolist()]


if __name__ == "__main__":
    serve({"change": change})
