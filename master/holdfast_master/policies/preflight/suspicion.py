"""Suspicion: the nodes that are checked again before the next world, and the reason.

Belongs here: what makes a node suspect that was checked before. Does not belong here: points and
their decay (`policies.node_history`), the time at which a check fits (`job.health.rechecks`).

A straggler or a hang that was laid to the node itself is enough: a check costs seconds, and tells
if the hardware is slow. A crash is not, as scripts crash, unless it makes the host suspect.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast_master.policies.node_history import HostStanding, Strike
from holdfast_wire.strikes import StrikeCause

_ENOUGH: Final = frozenset({StrikeCause.STRAGGLER, StrikeCause.HANG})
"""Causes that say something of one node, not of its script."""


def why_again(
    rank: int, judged_at: float, strikes: Iterable[Strike], standing: HostStanding | None
) -> str:
    """Return why a checked node is to be checked again; empty: it is not.

    Args:
        rank: The node's rank.
        judged_at: Unix time of its last verdict, s; what came before is in that.
        strikes: Against its host, in any order.
        standing: Of its host; None: nothing counts against it.
    """
    later = [one for one in strikes if one.at > judged_at]
    own = [one for one in later if one.node_rank == rank and one.cause in _ENOUGH]
    if own:
        newest = max(own, key=lambda one: (one.at, one.cause))
        return f"{newest.cause.value.lower()} since its last check"
    if later and standing is not None and standing.suspect:
        return f"its host is suspect ({standing.reason})"
    return ""
