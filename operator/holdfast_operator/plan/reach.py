"""Which of a job's nodes answer nothing, judged by their kernels, while others do.

Pure. A node that has lost its power or its network leaves every attempt to connect to one of its
pods without an answer; one that lives answers, if only that nobody listens there. Silence alone
proves nothing, it may be this side that is cut off: somebody else must have answered meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from holdfast_wire.messages import PodPhase

MOST_NODES: Final = 256
"""That are asked at a time, the one in question first. That somebody answers shows soon."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A pod that should answer."""

    node: str
    address: str
    """Its IP."""
    uid: str
    phase: PodPhase


def asked(places: Iterable[Place], suspects: Iterable[str]) -> tuple[Place, ...]:
    """Whom to ask: every pod of the nodes in question, and one of each other node."""
    doubted = frozenset(suspects)
    chosen: dict[tuple[str, str], Place] = {}
    for place in places:
        if place.phase is PodPhase.RUNNING and place.node and place.address:
            one = place.uid if place.node in doubted else ""
            chosen.setdefault((place.node, one), place)
    ordered = sorted(chosen.values(), key=lambda place: (place.node not in doubted, place.node))
    nodes = list(dict.fromkeys(place.node for place in ordered))[:MOST_NODES]
    return tuple(place for place in ordered if place.node in nodes)


def unreachable(answers: Mapping[Place, bool]) -> frozenset[str]:
    """The nodes none of whose pods answered; none of them where nobody did.

    Args:
        answers: Of each pod that was asked, at about the same time.
    """
    there = {place.node for place, answered in answers.items() if answered}
    if not there:
        return frozenset()
    return frozenset(place.node for place in answers) - there
