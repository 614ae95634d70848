"""Chooses a world's start without a master: the newest intact version of all tiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.flash.memory.slots import Version
from holdfast.flash.server.protocol import TrainerHello
from holdfast.flash.server.tiers import CheckpointTier
from holdfast_wire.messages import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The start of a world, the same for all of its ranks."""

    version: Version | None = None
    """None: there is nothing to start from."""
    tier: Tier = Tier.UNSPECIFIED
    """Tier that it is read from."""
    notes: tuple[str, ...] = ()
    """Versions that were passed over, with reasons."""


def choose_origin(tiers: Mapping[Tier, CheckpointTier], asking: Sequence[TrainerHello]) -> Origin:
    """Return the newest version that verifies; of equal ones that of the nearest tier.

    Call it when no trainer of an older world lives, and no write is under way.
    """
    version, chosen, notes = None, Tier.UNSPECIFIED, list[str]()
    for name, tier in tiers.items():
        found, passed_over = tier.newest(asking, version)
        notes += passed_over
        if found is not None:
            version, chosen = found, name
    return Origin(version=version, tier=chosen, notes=tuple(notes))
