"""Effective time of simulated worlds: how much of a large job's time remains for training. Pure.

Failures come at drawn instants, at a rate that grows with the world. What each of them costs is
given: measured here on four ranks, or published. A cost that grows with the world is not known from
four ranks, so the same worlds are also drawn with all costs of replicas times ten and a hundred.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

META_HOURS: Final = 7.9
"""Mean time between failures of Meta's jobs of 1,024 GPUs, hours (arXiv 2410.21680)."""
META_GPUS: Final = 1_024
GPUS: Final = 8
"""Of a replica: one node."""
DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What failures cost, seconds unless said."""

    stall: float
    """All wait: from a failure to where training goes on, without steps that are made again."""
    lost: float = 0.0
    """Work of all that is made again after a failure."""
    share: float = 0.0
    """Work of one replica that the others make again: a step's."""
    join: float = 0.0
    """All wait: for a replica that comes back."""
    away: float = 0.0
    """Until a lost replica is back. Its part of each step is then the others' work."""
    steady: float = 0.0
    """Share of each second that is paid with no failure at all: checkpoints, hooks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Where a world's time went, as shares of it."""

    effective: float
    stall: float
    lost: float
    share: float
    join: float
    away: float
    steady: float
    failures_a_day: float


def world(
    replicas: int, costs: Costs, *, hours: float = META_HOURS, days: float = 30.0, seed: int = 0
) -> Spent:
    """Return where the time of a world went.

    A failure while all wait begins the wait anew. Work that is lost, and the part of those away,
    is counted in seconds of the whole world.

    Args:
        replicas: Of `GPUS` each.
        costs: Of a failure.
        hours: Mean time between failures at `META_GPUS`.
        days: Simulated.
        seed: Of the instants.
    """
    draw = random.Random(seed)
    rate = replicas * GPUS / META_GPUS / (hours * 3600.0)
    end, now, stalled, joined, failures = days * DAY, 0.0, 0.0, 0.0, 0
    back: list[float] = []
    absent = lost = shared = since = 0.0
    while True:
        now, fails = now + draw.expovariate(rate), failures + 1
        if now >= end:
            break
        failures, gap, since = fails, now - since, now
        stalled += min(gap, costs.stall) if failures > 1 else 0.0
        worked = max(0.0, gap - costs.stall)
        lost += min(worked, costs.lost)
        shared += costs.share / max(1, replicas - 1)
        joined += costs.join if costs.away else 0.0
        absent += costs.away / replicas
        back.append(now + costs.away)
    steady = costs.steady * max(0.0, end - stalled - joined)
    parts = [stalled, lost, shared, joined, absent, steady]
    stall, gone, share, join, away, paid = (min(1.0, one / end) for one in parts)
    effective = max(0.0, 1.0 - stall - gone - share - join - away - paid)
    return Spent(
        effective=effective, stall=stall, lost=gone, share=share, join=join, away=away,
        steady=paid, failures_a_day=failures / days,
    )  # fmt: skip


def times(costs: Costs, factor: float) -> Costs:
    """Return costs of failures that are so many times greater; the steady one stays."""
    grown = {
        name: factor * getattr(costs, name) for name in ("stall", "lost", "share", "join", "away")
    }
    return replace(costs, **grown)
