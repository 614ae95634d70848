"""Goodput accounting: every second of every node in exactly one class, in microseconds.

Times are whole microseconds, so that sums are exact and replay gives the same figures.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping

from holdfast_wire.messages import ClassSeconds, GoodputClass, GoodputEntry, RankSection

MICROS = 1_000_000

CLASSES = tuple(kind for kind in GoodputClass if kind is not GoodputClass.UNSPECIFIED)
"""Every class, in the order in which they are shown."""

Totals = dict[GoodputClass, int]
"""Microseconds by class."""


_FOREVER_SECONDS = 1e9
"""s: more than any node can have worked."""
UNKNOWN_STALL_SECONDS = 600.0
"""s: without a completed step where no two have told how long one takes; as long as NCCL's and
torch's own time-out of a collective."""


def micros(seconds: float) -> int:
    """Return whole microseconds."""
    return round(seconds * MICROS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The activity of a node that has a place in a training world."""

    sections: frozenset[RankSection]
    since_step_seconds: float
    """Longest time since a completed step among its ranks, s."""
    usual_step_seconds: float
    """A usual step of this world, s; 0: not known."""


def classify(activity: Activity, *, stall_seconds: float, stall_steps: float) -> GoodputClass:
    """The class of a node whose world trains.

    A rank in a checkpoint makes it CHECKPOINT. It hangs when it trains and no step was completed
    for `stall_seconds` and for `stall_steps` usual steps; where no usual step is known, for
    `UNKNOWN_STALL_SECONDS`.
    """
    if RankSection.CHECKPOINT in activity.sections:
        return GoodputClass.CHECKPOINT
    usual = stall_steps * activity.usual_step_seconds or UNKNOWN_STALL_SECONDS
    stepping = activity.sections <= {RankSection.TRAIN, RankSection.UNSPECIFIED}
    if stepping and activity.since_step_seconds > max(stall_seconds, usual):
        return GoodputClass.HANG
    return GoodputClass.PRODUCTIVE


def entries(totals: Mapping[GoodputClass, int]) -> tuple[GoodputEntry, ...]:
    """The totals as messages: node-seconds, in the classes' order, without empty classes."""
    return tuple(GoodputEntry(kind=kind, node_seconds=spent) for kind, spent in _spent(totals))


def from_entries(items: Iterable[GoodputEntry]) -> Totals:
    """The totals that `entries` made messages of."""
    return {item.kind: micros(item.node_seconds) for item in items}


def summed(many: Iterable[Mapping[GoodputClass, int]]) -> Totals:
    """The sum over nodes, by class."""
    total = collections.Counter[GoodputClass]()
    for totals in many:
        total.update(totals)
    return dict(total)


def ratio(totals: Mapping[GoodputClass, int]) -> float:
    """The productive share of all node-seconds, 0 to 1; 0 when nothing was counted."""
    whole = sum(totals.values())
    return totals.get(GoodputClass.PRODUCTIVE, 0) / whole if whole else 0.0


def class_seconds(totals: Mapping[GoodputClass, int]) -> tuple[ClassSeconds, ...]:
    """The totals as hellos and digests carry them."""
    return tuple(ClassSeconds(name=kind.name, seconds=spent) for kind, spent in _spent(totals))


def _spent(totals: Mapping[GoodputClass, int]) -> list[tuple[GoodputClass, float]]:
    """Seconds by class, in the classes' order, without empty classes."""
    return [(kind, totals[kind] / MICROS) for kind in CLASSES if totals.get(kind)]


def from_class_seconds(items: Iterable[ClassSeconds]) -> Totals:
    """The totals that an agent brought, without unknown classes and impossible times."""
    return {
        GoodputClass[item.name]: micros(item.seconds)
        for item in items
        if item.name in GoodputClass.__members__ and 0 <= item.seconds < _FOREVER_SECONDS
    }
