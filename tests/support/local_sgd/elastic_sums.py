"""A rank of an elastic replica that trains nothing: at each boundary it sums a tensor over members.

Belongs here: the loop of boundaries, in as many groups as it takes, and what a rank writes down.
Does not belong here: who is killed and who comes (`elastic_jobs`), what must hold (tests).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZE = 200_000
"""Elements of the tensor that a boundary sums."""


def run_rank(folder: Path, replica: int, shard: int, scenario: Mapping[str, Any]) -> None:
    """Be one rank, until the control plane tells all to end."""
    from local_sgd.elastic_training import members_of

    members = members_of(folder, replica, shard, scenario)
    own, stopped = 0, False
    now = members.refresh()
    with (folder / f"log-{replica}-{shard}").open("w", encoding="utf-8", buffering=1) as log:
        while not stopped:
            time.sleep(scenario["pace"])
            own += 1
            arrived = time.monotonic()
            now, total = _boundary(members, now, folder)
            stopped = total[1] > 0
            told = {
                "pid": os.getpid(), "round": own, "epoch": now.epoch, "members": int(total[0]),
                "arrived": arrived, "left": time.monotonic(),
            }  # fmt: skip
            log.write(json.dumps(told) + "\n")


def _boundary(members: Any, now: Any, folder: Path) -> tuple[Any, list[float]]:
    """Sum over the members, in as many groups as it takes; return membership and sums."""
    now = members.refresh() or now
    while (total := _sum(now.group, folder)) is None:
        now = members.recover()
    return now, total


def _sum(group: Any, folder: Path) -> list[float] | None:
    """Return the count of members and of those told to stop; None: a collective failed.

    Two are on their way at a time, as those of two units are. The second waits for one rank only.
    """
    import torch

    from holdfast.local_sgd.sync.group import SyncError

    mine = torch.ones(SIZE)
    mine[1] = float((folder / "stop").exists())
    try:
        works = [group.begin_sum(mine), group.begin_broadcast(torch.ones(9), group.size // 2)]
        for work in works:
            work.wait()
    except SyncError:
        return None
    return [float(mine[0]), float(mine[1])]
