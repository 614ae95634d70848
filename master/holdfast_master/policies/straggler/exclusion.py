"""Exclusion of a straggler: whether a verdict is worth a rescale."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from holdfast_master.policies.quantities import counted, in_words
from holdfast_master.policies.rendezvous import Bounds
from holdfast_master.policies.straggler.verdict import StragglerVerdict, Subject

CAP_SECONDS: Final = 6 * 3600.0
"""Time in which exclusions are counted, s: the half-life of what speaks against a host."""
CAP_SHARE: Final = 0.1
"""Share of a world's nodes that may leave within that time."""
CAP_NODES: Final = 2
"""Nodes that may leave within that time in a small world, too."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prospects:
    """Inputs of the decision besides the verdict. Counts are of nodes."""

    members: int
    standbys: int
    """Outside the world, warm."""
    bounds: Bounds
    window: float
    """Time over which a gain counts, s."""
    excluded: int = 0
    """Nodes that have left for being slow within `CAP_SECONDS`."""
    cost: float
    """Measured pause of the whole world for one rescale, s."""
    redone: float = 0.0
    """Training that may have to be done again, s. Infinite: nobody knows how much."""
    why_redone: str = ""
    """Why it may have to be done again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Exclude:
    """The nodes leave the world."""

    nodes: tuple[str, ...]
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class NoExclusion:
    """Nothing changes."""

    reason: str


def decide(verdicts: Sequence[StragglerVerdict], prospects: Prospects) -> Exclude | NoExclusion:
    """Decide which of the accused nodes are worth a rescale.

    The world goes at the pace of its slowest node. So the slowest nodes leave together, as many of
    them as gain most. A wrong judgement must not drain a job node by node, so few may leave within
    a time.
    """
    accused = [one for one in verdicts if one.subject is not Subject.JOB]
    percents = _percents(one for one in accused if not one.own_work)
    stays = max(_percents(one for one in accused if one.own_work).values(), default=0.0)
    if not percents:
        return NoExclusion(_why_none(accused))
    slowest = sorted(percents, key=lambda node: (-percents[node], node))
    allowed = most_excluded(prospects.members) - prospects.excluded
    if allowed <= 0:
        return NoExclusion(
            f"{counted(prospects.excluded, 'node')} left for being slow within "
            f"{in_words(CAP_SECONDS)}, and no more may, lest a wrong judgement drain the job"
        )
    most = min(allowed, len(slowest))
    options = [_option(slowest, percents, count + 1, stays, prospects) for count in range(most)]
    best = max(options, key=lambda option: option.gain)
    if not best.size:
        least = prospects.bounds.smallest
        return NoExclusion(
            f"without {slowest[0]} fewer than the {counted(least, 'node')} that the job needs "
            "remain; it could leave with a standby (worker.standbys) or a lower minReplicas"
        )
    nodes = tuple(slowest[: best.count])
    terms = (
        f"{best.size} nodes without {', '.join(nodes)} train {best.speed:.2f} times as fast, "
        f"a gain of {in_words(max(best.gain, 0.0))} in {in_words(prospects.window)}; "
        f"a rescale costs {in_words(prospects.cost)}{_again(prospects)}"
    )
    if best.gain <= prospects.cost + prospects.redone:
        more = f"; {counted(most, 'more node')} may leave now" if most < len(slowest) else ""
        return NoExclusion(terms + more)
    return Exclude(nodes, terms)


def most_excluded(members: int) -> int:
    """Return how many nodes of a world may leave for being slow within `CAP_SECONDS`."""
    return max(CAP_NODES, int(members * CAP_SHARE))


def _percents(verdicts: Iterable[StragglerVerdict]) -> dict[str, float]:
    """The slowdown of each accused node."""
    found: dict[str, float] = {}
    for one in verdicts:
        found[one.node] = max(found.get(one.node, 0.0), one.percent)
    return found


def _why_none(accused: Sequence[StragglerVerdict]) -> str:
    if not accused:
        return "no node is accused"
    return (
        f"{accused[0].own_work}; such work would go with the rank to any other node. A node leaves "
        "for it where its other ranks, all parts of its step or its preflight are slow, too"
    )


def _again(prospects: Prospects) -> str:
    redone = prospects.redone
    if not redone:
        return ""
    much = in_words(redone) if redone < math.inf else "an unknown time"
    return f" and up to {much} of training, since {prospects.why_redone}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Option:
    """So many of the slowest nodes leave."""

    count: int
    size: int
    """Of the world then; 0: none."""
    speed: float
    """Of training then, over that of now."""
    gain: float
    """s within the window."""


def _option(
    slowest: Sequence[str],
    percents: Mapping[str, float],
    count: int,
    stays: float,
    prospects: Prospects,
) -> _Option:
    size = prospects.bounds.fit(prospects.members - count + min(count, prospects.standbys))
    left = max(stays, percents[slowest[count]] if count < len(slowest) else 0.0)
    pace = (100 + percents[slowest[0]]) / (100 + left)
    speed = pace * size / prospects.members
    return _Option(count, size, speed, prospects.window * (speed - 1))
