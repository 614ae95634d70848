"""Bugs in what masters do about ill nodes under mode Act; found on seeds of such jobs."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

from holdfast_master.job.health import exclusions, hang_responses
from holdfast_master.job.nodes import liveness
from holdfast_master.job.state.world import World
from simulation import scenario
from simulation.planted.patches import Bugs, Patch

BUGS = Bugs(scenario.acting)


@BUGS.wrong("hang left", "mode Act leaves a hang alone", hang_responses, "respond")
def _nothing(*_: Any) -> None:
    return None


@BUGS.patched("next node", "another node than the slow one is excluded")
def _next_node() -> list[Patch]:
    """The host of the slow node is avoided, and the node behind it leaves."""

    def renew(job: Any, node: Any, why: str, text: str) -> None:
        others = sorted(job.membership.nodes)
        behind = others[(others.index(node.rank) + 1) % len(others)]
        liveness.renew(job, job.membership.nodes[behind], why, text)

    return [(exclusions, "liveness", SimpleNamespace(renew=renew))]


@BUGS.wrong(
    "no room", "a slow node is excluded although too few are left", exclusions, "_prospects"
)
def _prospects(right: Any, job: Any, world: Any) -> Any:
    found = right(job, world)
    return dataclasses.replace(found, bounds=dataclasses.replace(found.bounds, minimum=1))


@BUGS.wrong(
    "group rank blamed",
    "a hang is laid to the node whose rank is the place",
    World,
    "nodes_by_rank",
)
def _by_place(_: Any, world: Any) -> dict[int, int]:
    ranks: dict[int, int] = {}
    for at, member in enumerate(world.fact.members):
        for _local in range(member.local_world_size):
            ranks[len(ranks)] = at
    return ranks


@BUGS.wrong("kept silently", "nobody is told why a slow node stays", exclusions, "_keep")
def _silent(*_: Any) -> None:
    return None
