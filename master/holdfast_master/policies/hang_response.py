"""Response to a hang: the smallest thing that helps, once its cause is known.

Belongs here: the verdict's remedy for these nodes, and the bound where nobody is to blame. Does not
belong here: the cause (`hang`), the budget that decides on hangs that come back (`failure`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from holdfast_master.policies.hang import HangVerdict, Remedy, remedy_of
from holdfast_master.policies.quantities import verb


class HangAction(enum.Enum):
    """The response to a hang."""

    NOTHING = "nothing"
    RESTART_ROUND = "restart the round"
    """On the same nodes."""
    REPLACE_AGENTS = "replace the agents"
    """The round begins anew, and these nodes get new pods on any host."""
    LEAVE_NODES = "go on without the nodes"
    """Their processes may not end even by SIGKILL, and their hosts are avoided."""


@dataclasses.dataclass(frozen=True, slots=True)
class HangResponse:
    """A response with its reason."""

    action: HangAction
    nodes: tuple[int, ...]
    """Node ranks that leave, in ascending order."""
    reason: str


_LEAVE = {
    Remedy.REPLACE_NODE: HangAction.LEAVE_NODES,
    Remedy.RESTART_AGENT: HangAction.REPLACE_AGENTS,
}


def decide(verdict: HangVerdict, nodes: Mapping[int, int], *, tried: bool) -> HangResponse:
    """Return the response to a hang.

    Args:
        verdict: Its cause.
        nodes: Node rank of each global rank of the world.
        tried: The world was started for a hang without an odd rank, and got no further since.
    """
    if not verdict.ranks:
        return _of_nobody(tried=tried)
    if verdict.remedy is Remedy.NOTHING:
        return HangResponse(HangAction.NOTHING, (), "a restart would meet the same on all nodes")
    action = _LEAVE.get(verdict.remedy)
    if action is None:
        return HangResponse(HangAction.RESTART_ROUND, (), "its ranks are started anew")
    bad = {nodes[one.rank] for one in verdict.ranks if remedy_of(one.kind) is verdict.remedy}
    leaving = tuple(sorted(bad))
    if len(leaving) > 1 and len(leaving) == len(set(nodes.values())):
        return HangResponse(HangAction.NOTHING, (), "all nodes have it, so none is to blame")
    names = ", ".join(map(str, leaving))
    text = f"{verb(len(leaving), 'node', 'nodes')} {names} {verb(len(leaving), 'leaves', 'leave')}"
    return HangResponse(action, leaving, text)


def _of_nobody(*, tried: bool) -> HangResponse:
    if tried:
        text = "no rank is to blame, and a restart has not helped"
        return HangResponse(HangAction.NOTHING, (), text)
    text = "no rank is to blame: all ranks are started anew, once"
    return HangResponse(HangAction.RESTART_ROUND, (), text)
