"""Succession: decides between two agents of one node rank.

Belongs here: the choice between an agent that is known and one that says hello. Does not belong
here: the consequences of the loss of the former.
"""

from __future__ import annotations

import dataclasses
import enum


class Standing(enum.Enum):
    """The standing that a hello gives an agent."""

    NEW = "new"
    """Nobody held the rank."""
    RETURNED = "returned"
    """The same agent is back."""
    SUCCESSOR = "successor"
    """It takes the rank; the agent before counts as gone."""
    OUTDATED = "outdated"
    """It must leave; the rank belongs to somebody newer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """An agent's claim to a node rank."""

    pod_uid: str
    agent_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Succession:
    """The standing of the agent that said hello, with the reason."""

    standing: Standing
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """The knowledge about a node rank from the operator and from the past."""

    newest_pod: str | None = None
    """The newest pod of the rank while an operator watches; None: nobody can tell."""
    superseded: frozenset[str] = frozenset()
    """Pods of the rank that were followed by another."""
    ended: str | None = None
    """The rank's newest pod where its processes have ended for certain."""
    dismissed: frozenset[str] = frozenset()
    """Agents that were told to leave and must not return."""


def decide(incumbent: Claim | None, hello: Claim, knowledge: Knowledge) -> Succession:
    """Decide which agent holds the rank after this hello.

    The newest pod that the operator knows wins. Where the operator cannot tell, the newest hello
    wins.
    """
    if hello.agent_id in knowledge.dismissed:
        return Succession(Standing.OUTDATED, "this agent was told to leave before")
    if hello.pod_uid and hello.pod_uid == knowledge.ended:
        # Its words were still on their way when its end was told.
        return Succession(Standing.OUTDATED, f"pod {hello.pod_uid} has ended")
    if incumbent is not None and incumbent.agent_id == hello.agent_id:
        return Succession(Standing.RETURNED, "the same agent")
    if hello.pod_uid in knowledge.superseded:
        text = f"pod {hello.pod_uid} was followed by a newer one"
        return Succession(Standing.OUTDATED, text)
    if incumbent is None:
        return Succession(Standing.NEW, "nobody held the rank")
    if incumbent.pod_uid == knowledge.newest_pod != hello.pod_uid:
        text = f"the rank belongs to pod {incumbent.pod_uid}, the newest that exists"
        return Succession(Standing.OUTDATED, text)
    text = f"agent {hello.agent_id} takes the rank over from {incumbent.agent_id}"
    return Succession(Standing.SUCCESSOR, text)
