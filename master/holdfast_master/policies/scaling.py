"""Scaling: decides a change of a running world's members, and its time."""

from __future__ import annotations

import dataclasses
import enum
import math

from holdfast_master.policies.quantities import counted, verb
from holdfast_master.policies.rendezvous import Bounds


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
    starts_until: float | None = None
    """Until when the world may still be starting, s: nobody has seen a step of it, and to grow it
    would throw its start away; infinite: until its first step is seen; None: it trains."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Economy:
    """The terms on which growing pays."""

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
class NotYet:
    """The world should change, but not yet."""

    until: float
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Rescale:
    """Stop the ranks together and form a world of this size; 0: too few nodes are left."""

    purpose: Purpose
    size: int
    reason: str


def decide(fleet: Fleet, economy: Economy, now: float) -> Keep | NotYet | Rescale:
    """Decide whether the running world is to change."""
    bounds = fleet.bounds
    staying = fleet.members - fleet.leaving
    size = bounds.fit(staying + fleet.spares)
    if fleet.leaving:
        text = f"{fleet.leaving} of {fleet.members} nodes leave; {_world(size)}"
        return Rescale(Purpose.DRAIN, size, text)
    if fleet.members > bounds.largest:
        text = f"{_nodes(bounds.largest)} wanted, {fleet.members} are in the world"
        return Rescale(Purpose.SHRINK, size, text)
    if size <= fleet.members:
        return Keep(_content(fleet, size))
    return _grow(fleet, economy, size, now)


def _world(size: int) -> str:
    return f"goes on with {size}" if size else "too few are left, waits for others"


def _nodes(number: int) -> str:
    return f"{counted(number, 'node')} {_be(number)}"


def _word(number: int) -> str:
    return verb(number, "node", "nodes")


def _be(number: int) -> str:
    return verb(number, "is", "are")


def _more(number: int, one: str, more: str) -> str:
    return f"{counted(number, 'more node')} {verb(number, one, more)}"


def _content(fleet: Fleet, size: int) -> str:
    if fleet.members == fleet.bounds.largest:
        members = fleet.members
        return (
            f"the world has {'the' if members == 1 else f'all {members}'} wanted {_word(members)}"
        )
    if fleet.spares and size == fleet.members:
        return f"{_more(fleet.spares, 'does', 'do')} not make another unit of {fleet.bounds.unit}"
    return f"no other node is ready for the world of {fleet.members}"


def _after_start(more: int, until: float) -> Keep | NotYet:
    if math.isinf(until):
        return Keep(f"{_more(more, 'is', 'are')} ready; the world has not completed its first step")
    text = f"{_more(more, 'is', 'are')} ready; no rank reports steps, so the start may not be over"
    return NotYet(until, text)


def _grow(fleet: Fleet, economy: Economy, size: int, now: float) -> Keep | NotYet | Rescale:
    more = size - fleet.members
    gain = economy.horizon * more / size
    if gain <= economy.cost:
        return Keep(
            f"{counted(more, 'more node')} would gain {gain:.1f} s in {economy.horizon:g} s, "
            f"less than the {economy.cost:.1f} s that the change costs"
        )
    if fleet.starts_until is not None and now < fleet.starts_until:
        return _after_start(more, fleet.starts_until)
    if size < fleet.bounds.largest and fleet.expected:
        since = now if fleet.spare_since is None else fleet.spare_since
        until = since + economy.window
        if now < until:
            return NotYet(
                until, f"{_nodes(more)} ready, {fleet.expected} more {_be(fleet.expected)} expected"
            )
    return Rescale(Purpose.GROW, size, f"grows from {fleet.members} to {size} nodes")
