"""Checkpoint tiers: their order, their words, and the steps between saves by tier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from holdfast_wire.messages import (
    CheckpointVersion,
    RestoreRequest,
    SavingReport,
    Tier,
    TierCost,
    TierInterval,
)

TIERS: Final[tuple[Tier, ...]] = tuple(
    sorted(tier for tier in Tier if tier is not Tier.UNSPECIFIED)
)
"""Every tier, the nearest first."""


def word(tier: Tier) -> str:
    """The word of a tier for people: "memory", "storage"."""
    return tier.name.lower().replace("_", " ")


def by_tier(intervals: Iterable[TierInterval]) -> dict[Tier, int]:
    """The steps between saves of each tier; 0 for one that is not named."""
    named = {one.tier: one.every for one in intervals}
    return {tier: named.get(tier, 0) for tier in TIERS}


def to_intervals(every: Mapping[Tier, int]) -> tuple[TierInterval, ...]:
    """The message's form of steps between saves, the nearest tier first."""
    return tuple(TierInterval(tier=tier, every=every[tier]) for tier in sorted(every))


def offered(request: RestoreRequest, tier: Tier) -> tuple[CheckpointVersion, ...]:
    """The versions that a node could take from a tier, newest first."""
    return tuple(v for one in request.offers if one.tier is tier for v in one.versions)


def costs_by_tier(report: SavingReport) -> dict[Tier, TierCost]:
    """Return the cost of saves by tier; of a tier that is not named, none was measured."""
    named = {one.tier: one for one in report.costs}
    return {tier: named.get(tier, TierCost(tier=tier)) for tier in TIERS}
