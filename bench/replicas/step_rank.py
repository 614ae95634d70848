"""One rank of a world in which ways take turns, step by step, while nothing happens.

Run as `python -m bench.replicas.step_rank plan.json`, by `steps`. Ranks are the world's; a replica
takes some in a row. Replicas have the members of a roster that never changes, as they have under an
agent: they look for another one as they would.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from bench.replicas import results as r
from bench.replicas import script
from holdfast.local_sgd.members.members import RosterMembers, roster_file
from holdfast.local_sgd.policies.outer_roster import OuterRoster
from holdfast.local_sgd.sync.group import Group
from holdfast.replicas import Replicated, mesh_of

_WARM: Final = 3
"""Steps of each way before the first that counts."""


def main() -> None:
    """Carry out the plan; rank 0 writes a line for each way and turn."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(sys.argv[1]).parent
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    steps = {way: _WAYS[way](plan, folder) for way in plan["ways"]}
    for one in steps.values():
        for _ in range(_WARM):
            one()
    draw = random.Random(plan["seed"])
    for turn in range(plan["turns"]):
        for way in draw.sample(plan["ways"], len(plan["ways"])):
            values = _timed(steps[way], plan["steps"])
            if dist.get_rank() == 0:
                with (folder / "lines").open("a") as out:
                    out.write(json.dumps([way, turn, values, os.getloadavg()[0]]) + "\n")
    dist.barrier()
    os._exit(0)  # groups that share threads are not taken apart one by one


def _timed(step: Callable[[], None], count: int) -> dict[str, float]:
    """Return the time of a step, that of the slowest rank, and the CPU time of all ranks."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    dist.barrier()
    begun, spent = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    mine = torch.tensor([time.perf_counter() - begun, time.process_time() - spent, _peak()])
    mine = mine.double()
    told = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(told, mine)
    wall, cpu, peak = ([float(one[at]) for one in told] for at in range(3))
    return {
        r.WALL: 1000 * max(wall) / count,
        r.CPU: 1000 * sum(cpu) / count,
        r.PEAK: max(peak),
    }


def _peak() -> float:
    """Return the most memory that this process has had since the peak began anew, MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = [one.split()[1] for one in lines if one.startswith("VmHWM:")]
    return int(peak) * 1024 / 1e6


def _plain(plan: Mapping[str, Any], folder: Path) -> Callable[[], None]:
    del folder
    optimizer, parallel = script.plain(
        script.model_of(plan["model_mb"]), plan["shards"], dist.group.WORLD
    )
    made, share = 0, script.PlainShare(plan["shards"], script.MICRO_BATCHES)

    def step() -> None:
        nonlocal made
        share.step(parallel, optimizer, made, plan["pace_ms"] / 1000)
        made += 1

    return step


def _replicas(plan: Mapping[str, Any], folder: Path) -> Callable[[], None]:
    members = _members(plan["shards"], folder)
    model, own = script.model_of(plan["model_mb"]), members.shard_group
    if own.size > 1:
        script.cut(model, mesh_of(members, "cpu"))
    optimizer = script.adamw(model)
    replicated = Replicated(model, optimizer, members, micro_batches=script.MICRO_BATCHES)

    def step() -> None:
        for number in replicated.dealt():
            at = replicated.steps * script.MICRO_BATCHES + number
            rows = script.micro_batch(at, own.rank, own.size)
            script.backward(model, rows)
            time.sleep(plan["pace_ms"] / 1000)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _members(shards: int, folder: Path) -> RosterMembers:
    """Return members whose one roster this world's first rank writes, with its store."""
    rank, world = dist.get_rank(), dist.get_world_size()
    blocks = [list(range(first, first + shards)) for first in range(0, world, shards)]
    own: Any = dist.new_subgroups_by_enumeration(blocks)[0]
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        _kept.append(store)
        roster = OuterRoster(1, tuple(range(world // shards)), f"127.0.0.1:{store.port}")
        (folder / "fresh").write_text(roster.to_text())
        (folder / "fresh").replace(folder / "roster")
    dist.barrier()
    return RosterMembers(roster_file(folder / "roster"), rank // shards, Group(own))


_kept: list[Any] = []
_WAYS: Final[Mapping[str, Callable[[Mapping[str, Any], Path], Callable[[], None]]]] = {
    r.PLAIN: _plain,
    r.REPLICAS: _replicas,
}

if __name__ == "__main__":
    main()
