"""Reference figures: what earlier checks found healthy.

Belongs here: the spread of a group's figures, and what a check adds to the references. Does not
belong here: the level of a group (`holdfast_wire.resources`), a verdict (`verdicts`).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from holdfast_wire.resources import Resource, level_of, margin

LINK = "link"
"""Kind of the figures that two nodes have together."""
MOST_WEIGHT = 1000
"""Nodes that a reference stands for at the most: what is measured now counts at least as 0.1 %."""
_SPREAD_NODES = 32
"""Nodes from which the spread of their figures is known well enough to widen a margin."""
_SPREADS = 10.0
"""Median deviations of the upper half that make a margin. Of a normal distribution they are 4
standard deviations where all nodes are healthy, and 7 where half of them are not."""

Key = tuple[str, Resource]
"""Kind of the hardware, and resource."""


@dataclasses.dataclass(frozen=True, slots=True)
class Level:
    """The goodness of healthy nodes, and the number of nodes that it comes from."""

    good: float
    weight: int


@dataclasses.dataclass(frozen=True, slots=True)
class References:
    """Figures of healthy nodes in earlier checks."""

    by_kind: Mapping[Key, Level] = dataclasses.field(default_factory=dict)
    own: Mapping[tuple[str, Resource], float] = dataclasses.field(default_factory=dict)
    """Goodness of each node in its own last check, by node and resource."""

    def of(self, node: str, kind: str, resource: Resource) -> float | None:
        """Return the goodness that a node is to reach: the better of its kind's and its own."""
        level = self.by_kind.get((kind, resource))
        known = (None if level is None else level.good, self.own.get((node, resource)))
        return max((good for good in known if good is not None), default=None)


NONE = References()
"""No check has been made yet."""


def group_margin(resource: Resource, goods: Iterable[float]) -> float:
    """Return the distance below the level from which a node is slow.

    The tolerance of the resource; more where the better half of the group differs by more.
    """
    ordered = sorted(goods, reverse=True)
    upper = [one for one in ordered[: -(-len(ordered) // 2)] if math.isfinite(one)]
    if len(ordered) < _SPREAD_NODES or len(upper) < _SPREAD_NODES // 2:
        return margin(resource)
    middle = statistics.median(upper)
    spread = statistics.median(abs(one - middle) for one in upper)
    return max(margin(resource), _SPREADS * spread)


def learn(
    references: References,
    found: Mapping[Key, Sequence[float]],
    own: Mapping[tuple[str, Resource], float],
) -> References:
    """Return the references after a check.

    Args:
        references: Those before it.
        found: Goodness of the healthy nodes, by kind and resource.
        own: Goodness of each healthy node.
    """
    by_kind = dict(references.by_kind)
    for key, goods in found.items():
        finite = [one for one in goods if math.isfinite(one)]
        if finite:
            by_kind[key] = _merged(by_kind.get(key), finite)
    kept = {key: good for key, good in own.items() if math.isfinite(good)}
    return References(by_kind=by_kind, own=dict(references.own) | kept)


def _merged(before: Level | None, goods: Sequence[float]) -> Level:
    now = Level(level_of(goods), len(goods))
    if before is None:
        return Level(now.good, min(now.weight, MOST_WEIGHT))
    weight = before.weight + now.weight
    good = (before.good * before.weight + now.good * now.weight) / weight
    return Level(good, min(weight, MOST_WEIGHT))


def forget(references: References, nodes: Iterable[str]) -> References:
    """Return the references without the own figures of nodes that are gone for good."""
    gone = frozenset(nodes)
    own = {key: good for key, good in references.own.items() if key[0] not in gone}
    return References(by_kind=references.by_kind, own=own)
