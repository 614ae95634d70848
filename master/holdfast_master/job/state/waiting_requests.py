"""Requests of users that wait for the answer of an operator or of agents.

Belongs here: the data of such an answer. Does not belong here: answering (`user_requests`).
"""

from __future__ import annotations

import dataclasses

from holdfast_wire.messages import NodeStacks


@dataclasses.dataclass(slots=True)
class ScaleWish:
    """A user's Scale that waits for the operator."""

    request_id: int
    replicas: int
    decision_id: int
    accepted: bool = False


@dataclasses.dataclass(slots=True)
class StackCall:
    """A user waits for the stacks of these nodes."""

    request_id: int
    commands: dict[int, int] = dataclasses.field(default_factory=dict)
    """Command id to node rank, those that have not answered."""
    answers: list[NodeStacks] = dataclasses.field(default_factory=list)
