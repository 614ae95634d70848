"""Which of a job's nodes answer nothing, judged by their kernels, while others do.

Pure. A node that has lost its power or its network leaves every attempt to connect to one of its
pods without an answer; one that lives answers, if only that nobody listens there. Silence alone
proves nothing: a policy may swallow every attempt, so only a pod counts that has answered before,
and it may be this side that is cut off, so somebody on another node must answer meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
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
    is_master: bool = False
    """It is known by its stream: a connection that says nothing would only stand in its log."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What is known of a job's nodes; without arguments, nothing."""

    own_node: str = ""
    """This side's: what answers there shows nothing of the way to others. Empty: not known."""
    answered: frozenset[str] = frozenset()
    """Uids of pods that have answered once."""
    silent: frozenset[str] = frozenset()
    """Nodes none of whose pods answered the last time, while others did."""
    unreachable: frozenset[str] = frozenset()
    """Those of them that are taken for gone or cut off."""

    def met(self, uid: str) -> Reach:
        """What is known once a stream to this pod is open."""
        return dataclasses.replace(self, answered=self.answered | {uid})

    def hear(self, answers: Mapping[Place, bool | None], suspects: Collection[str]) -> Reach:
        """What is known after one more round of questions.

        A node that was not in question counts from its second silent round on: then all its pods
        were asked. Where nobody else answers, what was known before stays.

        Args:
            answers: Of each pod that was asked; None: the question could not be put.
            suspects: The nodes in question.
        """
        heard = {place.uid for place, answer in answers.items() if answer}
        answered = self.answered | heard
        there = {place.node for place, answer in answers.items() if answer}
        asked = {
            place.node
            for place, answer in answers.items()
            if answer is False and place.uid in answered
        }
        if not there - {self.own_node}:
            kept = self.unreachable - there
            return dataclasses.replace(self, answered=answered, unreachable=kept)
        silent = frozenset(asked - there)
        known = self.silent | self.unreachable | frozenset(suspects)
        return dataclasses.replace(
            self, answered=answered, silent=silent, unreachable=silent & known
        )


def asked(places: Iterable[Place], suspects: Iterable[str]) -> tuple[Place, ...]:
    """Whom to ask: every pod of the nodes in question, and one of each other node."""
    doubted = frozenset(suspects)
    chosen: dict[tuple[str, str], Place] = {}
    for place in places:
        if can_answer(place):
            one = place.uid if place.node in doubted else ""
            chosen.setdefault((place.node, one), place)
    ordered = sorted(chosen.values(), key=lambda place: (place.node not in doubted, place.node))
    nodes = frozenset(list(dict.fromkeys(place.node for place in ordered))[:MOST_NODES])
    return tuple(place for place in ordered if place.node in nodes)


def can_answer(place: Place) -> bool:
    """Whether a pod runs somewhere."""
    return place.phase is PodPhase.RUNNING and bool(place.node) and bool(place.address)
