"""Kubernetes nodes that new pods avoid because several jobs had trouble on them. Pure.

Belongs here: the threshold, the cap, the order. Does not belong here: strikes and their decay
(`node_strikes`, `holdfast_wire.strikes`), nodes that one job excludes by itself (its master's).

The strikes of one job count one point at the most. A script that crashes wherever it runs would
otherwise exclude every node that it was on. Jobs of a namespace that only crashed or hung on a node
count one point together: the same script may have been submitted again.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from holdfast_operator.plan.node_strikes import NodeStrike
from holdfast_wire.strikes import NODE_SOURCE, StrikeCause, points_left

EXCLUDED_FROM: Final = 1.5
"""Points from which a node is excluded: two jobs at least, both within hours. It is the number from
which a master calls a host suspect."""
SOURCE_MOST: Final = 1.0
"""Points that the strikes of one job, or what the node itself shows, count at the most."""
_OF_SCRIPTS: Final = frozenset({StrikeCause.HANG, StrikeCause.FAILURE})
"""Causes that are a script's own fault more often than its node's."""
_NAMED: Final = 3
"""Sources that a reason names."""
_WHOLE: Final = 100


@dataclasses.dataclass(frozen=True, slots=True)
class ExcludedNode:
    """A node that new pods avoid."""

    host: str
    points: float
    reason: str
    """What was met there; it does not change while points decay."""


def exclude(
    strikes: Iterable[NodeStrike], nodes: Collection[str], percent: float, now: float
) -> tuple[ExcludedNode, ...]:
    """Return the nodes to exclude, the worst first.

    Args:
        strikes: Those that are kept.
        nodes: Names of the cluster's nodes; others are not excluded.
        percent: Share of the nodes that may be excluded at a time, at least one node of several;
            0: none is.
        now: Unix time, s.
    """
    by_host: dict[str, list[NodeStrike]] = {}
    for one in strikes:
        if one.host in nodes:
            by_host.setdefault(one.host, []).append(one)
    judged = (ExcludedNode(host, points(own, now), _reason(own)) for host, own in by_host.items())
    bad = sorted(
        (one for one in judged if one.points >= EXCLUDED_FROM),
        key=lambda one: (-one.points, one.host),
    )
    return tuple(bad[: _most(len(nodes), percent)])


def points(strikes: Iterable[NodeStrike], now: float) -> float:
    """Return what counts against a node.

    Args:
        strikes: Those against this node.
        now: Unix time, s.
    """
    by_job: dict[str, list[NodeStrike]] = {}
    for one in strikes:
        by_job.setdefault(one.job_uid, []).append(one)
    by_source: dict[tuple[bool, str], list[float]] = {}
    for uid, own in by_job.items():
        alone = any(one.cause not in _OF_SCRIPTS for one in own)
        source = (alone, uid if alone else own[0].job.partition("/")[0])
        left = math.fsum(points_left(one.cause, one.at, now) for one in own)
        by_source.setdefault(source, []).append(min(SOURCE_MOST, left))
    # fsum: the same in any order, also at the threshold.
    return math.fsum(min(SOURCE_MOST, math.fsum(left)) for left in by_source.values())


def with_room(
    excluded: Sequence[ExcludedNode], nodes: int, workers: int
) -> tuple[ExcludedNode, ...]:
    """Return those that a job of so many workers can do without, the worst first.

    In a small cluster it would wait for a node until the points have decayed.

    Args:
        excluded: The nodes to exclude, the worst first.
        nodes: Nodes of the cluster.
        workers: Worker pods of the job; each may need a node.
    """
    return tuple(excluded[: max(0, nodes - workers)])


def _most(nodes: int, percent: float) -> int:
    if percent <= 0:
        return 0
    return min(nodes - 1, max(1, int(nodes * percent / _WHOLE)))


def _reason(strikes: Iterable[NodeStrike]) -> str:
    by_job: dict[str, Counter[str]] = {}
    for one in strikes:
        by_job.setdefault(one.job, Counter())[one.cause.value] += 1
    named = [
        f"{', '.join(f'{cause} {count}' for cause, count in sorted(counts.items()))} "
        + ("of the node itself" if job == NODE_SOURCE else f"in {job}")
        for job, counts in sorted(by_job.items())
    ]
    more = len(named) - _NAMED
    return "; ".join(named[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
