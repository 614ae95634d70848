"""Notices about a node's end: decides whether the node leaves the world for one.

Belongs here: the meaning of a notice for the job. Does not belong here: the services that give
notices (the agent's and the operator's), the node's way out (`scaling`).

Time does not count: a node that will go leaves at once, be its end an hour away. The ranks save and
stop once in any case, and the sooner another node is asked for, the sooner it is there.
"""

from __future__ import annotations

import dataclasses
import enum

from holdfast_wire.messages import NoticeKind, NoticeReceived


class Consequence(enum.Enum):
    """The consequence of a notice for its node."""

    TELL = "tell"
    """People are told."""
    LEAVE = "leave"
    """The node leaves at the next barrier, and another one is asked for."""


@dataclasses.dataclass(frozen=True, slots=True)
class NoticeVerdict:
    """A consequence with its reason."""

    consequence: Consequence
    reason: str


_ENDS = {
    NoticeKind.PREEMPTION: "it will be taken away",
    NoticeKind.MAINTENANCE: "its host will be maintained, and the node ends or restarts",
}


def judge(notice: NoticeReceived) -> NoticeVerdict:
    """Return the consequence of a notice for the node that it is about."""
    end = _ENDS.get(notice.kind)
    if end is None:
        return NoticeVerdict(Consequence.TELL, "this release does not know the notice's kind")
    if not notice.stays:
        return NoticeVerdict(Consequence.LEAVE, end)
    if notice.kind is NoticeKind.MAINTENANCE:
        return NoticeVerdict(
            Consequence.TELL, "its host will be maintained; the node may pause, and stays"
        )
    return NoticeVerdict(Consequence.TELL, "it may be taken away; nobody says that it will be")
