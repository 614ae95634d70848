"""Scaling: decides a change of a running world's members, and its time."""

from __future__ import annotations

import dataclasses
import enum
import math

from holdfast_master.policies.quantities import counted, verb
from holdfast_master.policies.rendezvous import Bounds
from holdfast_master.settings import CoreSettings


class Purpose(enum.Enum):
    """The purpose for which a running world changes."""

    GROW = "grow"
    SHRINK = "shrink"
    DRAIN = "drain"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The facts that the decision depends on. Counts are of nodes."""

    members: int
    leaving: int
    """Members that are drained, or whose pods are not wanted any more."""
    spares: int
    """Candidates outside the world: warm, not draining, not excluded."""
    expected: int
    """Nodes outside the world that are on their way: their pods exist, they are not warm yet."""
    spare_since: float | None
    """Since when there has been a spare that the world could use, s."""
    bounds: Bounds
    cost: float
    """Measured pause of the whole world for one rescale, s."""
    starts_until: float | None = None
    """Until when the world may still be starting, s: nobody has seen a step of it, and to grow it
    would throw its start away; infinite: until its first step is seen; None: it trains."""


@dataclasses.dataclass(frozen=True, slots=True)
class Keep:
    """The world stays as it is."""

    until: float | None = None
    """When to decide again, s; None: when something changes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rescale:
    """Stop the ranks together and form a world of this size; 0: too few nodes are left."""

    purpose: Purpose
    size: int
    reason: str


def decide(fleet: Fleet, settings: CoreSettings, now: float) -> Keep | Rescale:
    """Decide whether the running world is to change."""
    bounds = fleet.bounds
    staying = fleet.members - fleet.leaving
    size = bounds.fit(staying + fleet.spares)
    if fleet.leaving:
        after = f"goes on with {size}" if size else "too few are left, waits for others"
        text = f"{fleet.leaving} of {fleet.members} nodes leave; {after}"
        return Rescale(Purpose.DRAIN, size, text)
    if fleet.members > bounds.largest:
        wanted = f"{counted(bounds.largest, 'node')} {verb(bounds.largest, 'is', 'are')}"
        text = f"{wanted} wanted, {fleet.members} are in the world"
        return Rescale(Purpose.SHRINK, size, text)
    if size <= fleet.members:
        return Keep()
    return _grow(fleet, settings, size, now)


def _grow(fleet: Fleet, settings: CoreSettings, size: int, now: float) -> Keep | Rescale:
    if settings.grow_horizon_seconds * (size - fleet.members) / size <= fleet.cost:
        return Keep()  # the change costs more than it would gain
    starts = fleet.starts_until
    if starts is not None and now < starts:
        return Keep(None if math.isinf(starts) else starts)
    if size < fleet.bounds.largest and fleet.expected:
        until = (
            now if fleet.spare_since is None else fleet.spare_since
        ) + settings.grow_window_seconds
        if now < until:
            return Keep(until)
    return Rescale(Purpose.GROW, size, f"grows from {fleet.members} to {size} nodes")
