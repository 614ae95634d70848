"""Reductions of drawn deltas by real ranks, without units: the same deltas in each round.

Runs in the ranks of `replica_world`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any


def drawn(rank: int, sizes: Sequence[int]) -> list[list[float]]:
    """Return a rank's deltas, one list for each unit."""
    draw = random.Random(500 + rank)
    return [[draw.uniform(-1, 1) for _ in range(size)] for size in sizes]


def weights_of(world: Mapping[str, Any]) -> list[list[float]]:
    """Return the weights of all ranks, for each unit other ones."""
    draw = random.Random(9)
    found = []
    for _ in world["sizes"]:
        raw = [draw.uniform(0.5, 1) for _ in range(world["world"])]
        for rank in world.get("left_out", ()):
            raw[rank] = 0.0
        found.append([one / sum(raw) for one in raw])
    return found


def reduce(world: Mapping[str, Any], pipe: Any) -> None:
    """Reduce for some rounds; tell the sum of the results, the last one, and what was lost."""
    import torch
    import torch.distributed as dist

    from holdfast.local_sgd.sync.group import Group
    from holdfast.local_sgd.sync.merging import Merging
    from holdfast.local_sgd.sync.reducers import Deltas, Lost, Reducer

    group, sizes = Group(timeout=60), world["sizes"]
    merging = Merging(**world.get("merging", {}))
    reducer = Reducer(merging, codec=world["codec"], error_feedback=world["feedback"])
    values = [one for unit in drawn(dist.get_rank(), sizes) for one in unit]
    mine = torch.tensor(values, dtype=torch.float32)
    lost: Sequence[Lost | None] = [None] * len(sizes)
    total, last = torch.zeros_like(mine, dtype=torch.float64), torch.zeros_like(mine)
    for number in range(world["rounds"]):
        seeds = [100 * number + unit for unit in range(len(sizes))]
        deltas = Deltas(mine.clone(), sizes, weights_of(world), seeds, lost)
        last, lost = reducer.start(group, deltas)()
        total += last
    known = [one for one in lost if one is not None]
    pipe.send(
        {
            "total": total.tolist(),
            "last": last.tolist(),
            "sent": [one.sent.tolist() for one in known],
            "merged": [(one.begin, one.merged.tolist()) for one in known],
        }
    )
