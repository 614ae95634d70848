"""Whether a running world should change its members, and when.

Belongs here: growing, shrinking, draining and swapping while the world trains. Does not belong
here: worlds that are broken (`rendezvous`), how ranks are stopped together (`arming`).
"""

from __future__ import annotations

import dataclasses
import enum

from holdfast_master.decide.rendezvous import Bounds


class Purpose(enum.Enum):
    """Why a running world changes."""

    GROW = "grow"
    SHRINK = "shrink"
    DRAIN = "drain"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What the decision depends on. Counts are of nodes."""

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Economy:
    """When growing pays."""

    window: float
    """How long a spare waits for others that are expected, s."""
    horizon: float
    """Over this long the gain counts, s."""
    cost: float
    """Measured pause of the whole world for one rescale, s."""


@dataclasses.dataclass(frozen=True, slots=True)
class Keep:
    """The world stays as it is."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Later:
    """The world should change, but not yet."""

    until: float
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Rescale:
    """Stop the ranks together and form a world of this size; 0: too few nodes are left."""

    purpose: Purpose
    size: int
    reason: str


def decide(fleet: Fleet, economy: Economy, now: float) -> Keep | Later | Rescale:
    """Whether the running world is to change."""
    bounds = fleet.bounds
    staying = fleet.members - fleet.leaving
    size = bounds.fit(staying + fleet.spares)
    if fleet.leaving:
        text = f"{fleet.leaving} of {fleet.members} nodes leave; {_world(size)}"
        return Rescale(Purpose.DRAIN, size, text)
    if fleet.members > bounds.largest:
        text = f"{bounds.largest} nodes are wanted, {fleet.members} are in the world"
        return Rescale(Purpose.SHRINK, size, text)
    if size <= fleet.members:
        return Keep(_content(fleet, size))
    return _grow(fleet, economy, size, now)


def _world(size: int) -> str:
    return f"goes on with {size}" if size else "too few are left, waits for others"


def _content(fleet: Fleet, size: int) -> str:
    if fleet.members == fleet.bounds.largest:
        return f"the world has all {fleet.members} wanted nodes"
    if fleet.spares and size == fleet.members:
        return f"{fleet.spares} more nodes do not make another unit of {fleet.bounds.unit}"
    return f"no other node is ready for the world of {fleet.members}"


def _grow(fleet: Fleet, economy: Economy, size: int, now: float) -> Keep | Later | Rescale:
    more = size - fleet.members
    gain = economy.horizon * more / size
    if gain <= economy.cost:
        return Keep(
            f"{more} more nodes would gain {gain:.1f} s in {economy.horizon:g} s, "
            f"less than the {economy.cost:.1f} s that the change costs"
        )
    if size < fleet.bounds.largest and fleet.expected:
        since = now if fleet.spare_since is None else fleet.spare_since
        until = since + economy.window
        if now < until:
            return Later(until, f"{more} nodes are ready, {fleet.expected} more are expected")
    return Rescale(Purpose.GROW, size, f"grows from {fleet.members} to {size} nodes")
