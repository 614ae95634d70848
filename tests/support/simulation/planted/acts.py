"""Bugs in what masters do about ill nodes under mode Act; found on seeds of such jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from holdfast_master.job.health import exclusions, hang_responses, stragglers
from holdfast_master.job.nodes import liveness
from simulation.planted.agent import Patch


def _hang_left() -> list[Patch]:
    return [(hang_responses, "respond", lambda *_: None)]


def _next_node() -> list[Patch]:
    """The host of the slow node is avoided, and the node behind it leaves."""

    def drain(job: Any, node: Any, kind: Any, text: str) -> None:
        others = sorted(job.membership.nodes)
        behind = others[(others.index(node.rank) + 1) % len(others)]
        liveness.drain(job, job.membership.nodes[behind], kind, text)

    return [(exclusions, "liveness", SimpleNamespace(drain=drain))]


def _no_room() -> list[Patch]:
    """A slow node leaves although too few are left."""
    right = exclusions._prospects

    def prospects(job: Any, world: Any) -> Any:
        found = right(job, world)
        return dataclasses.replace(found, bounds=dataclasses.replace(found.bounds, minimum=1))

    return [(exclusions, "_prospects", prospects)]


def _group_rank_blamed() -> list[Patch]:
    """A node is named by its place in the world."""

    def nodes_of(world: Any) -> dict[int, int]:
        ranks: dict[int, int] = {}
        for at, member in enumerate(world.fact.members):
            for _ in range(member.local_world_size):
                ranks[len(ranks)] = at
        return ranks

    return [(stragglers, "nodes_of", nodes_of)]


def _kept_silently() -> list[Patch]:
    return [(exclusions, "_keep", lambda *_: None)]


BUGS: tuple[tuple[str, str, Callable[[], list[Patch]]], ...] = (
    ("hang left", "mode Act leaves a hang alone", _hang_left),
    ("next node", "another node than the slow one is excluded", _next_node),
    ("no room", "a slow node is excluded although too few are left", _no_room),
    ("group rank blamed", "a hang is laid to the node whose rank is the place", _group_rank_blamed),
    ("kept silently", "nobody is told why a slow node stays", _kept_silently),
)
