"""Effective time of simulated worlds: how much of a large job's time remains for training. Pure.

Failures come at drawn instants, at a rate that grows with the world. What each of them costs is
given: measured here on four ranks, or published. How a cost grows with the world is not known from
four ranks, so the same worlds are also drawn with the stalls of replicas times ten and a hundred.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Final

META_HOURS: Final = 7.9
"""Mean time between failures of Meta's jobs of 1,024 GPUs, hours (arXiv 2410.21680)."""
META_GPUS: Final = 1_024
GPUS: Final = 8
"""Of a replica: one node."""
PUBLISHED_STALL: Final = 600.0
"""Seconds that a failure stops Meta's fully synchronous training of O(100,000) GPUs; 44 % of its
time is then effective (FT-HSDP, arXiv 2602.00277)."""
PUBLISHED_SHARE: Final = 0.44
HSDP_STALL: Final = 180.0
"""Seconds of a failure under FT-HSDP, whose effective time is 80 %."""
_DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a failure costs, seconds."""

    stall: float
    """All wait, from the failure on; another one in that time begins the wait anew."""
    lost: float = 0.0
    """Work of all that is made again."""
    shared: float = 0.0
    """Work of the lost replica that the others make again between them."""
    join: float = 0.0
    """All wait for the replica that comes back."""
    away: float = 0.0
    """Until it is back: the others do its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Where a world's time went, as shares of it; together 1."""

    effective: float
    stall: float
    lost: float
    shared: float
    join: float
    away: float


def mean_seconds(replicas: int, hours: float) -> float:
    """Return the mean time between failures of a world, from that of `META_GPUS`."""
    return hours * 3600.0 * META_GPUS / (replicas * GPUS)


def published_mean_seconds() -> float:
    """Return the mean time between failures at which the published stall leaves 44 %.

    Of a time with drawn failures, each followed by a stall, exp(-stall / mean) is left.
    """
    return PUBLISHED_STALL / -math.log(PUBLISHED_SHARE)


def world(
    replicas: int, mean_s: float, costs: Costs, *, days: float = 30.0, seed: int = 0
) -> TimeShares:
    """Return where the time of a world went.

    Args:
        replicas: Of the world.
        mean_s: Seconds between two failures, on average.
        costs: Of a failure.
        days: Simulated.
        seed: Of the instants.
    """
    draw = random.Random(seed)
    end, now = days * _DAY, draw.expovariate(1 / mean_s)
    stall = lost = shared = join = away = 0.0
    while now < end:
        gap = draw.expovariate(1 / mean_s)
        left = min(gap, end - now)
        for_stall = min(left, costs.stall)
        for_join = min(left - for_stall, costs.join)
        for_lost = min(left - for_stall - for_join, costs.lost)
        work = left - for_stall - for_join - for_lost
        for_shared = min(work, costs.shared / max(1, replicas - 1))
        stall, join, lost = stall + for_stall, join + for_join, lost + for_lost
        shared += for_shared
        away += min(work - for_shared, costs.away / replicas)
        now += gap
    rest = end - stall - lost - shared - join - away
    shares = (one / end for one in (rest, stall, lost, shared, join, away))
    return TimeShares(**dict(zip(TimeShares.__dataclass_fields__, shares, strict=True)))


def stalled(costs: Costs, factor: float) -> Costs:
    """Return costs whose waits of all are so many times longer."""
    return replace(costs, stall=factor * costs.stall, join=factor * costs.join)
