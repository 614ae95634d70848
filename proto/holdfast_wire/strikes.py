"""Strikes against Kubernetes nodes: their causes, their weights, their decay.

Belongs here: what the job master, which judges the hosts of its job, and the operator, which keeps
the strikes of all jobs, must agree on. Does not belong here: the standing of a host (the master's
`policies/node_history`), nodes that are avoided (the operator's `nodes/strikes`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

HALF_LIFE_SECONDS: Final = 6 * 3600.0
"""Time in which a strike loses half of its weight: a host that was repaired, or that was blamed by
accident, is as good as any after a day."""

SUSPECT_FROM: Final = 1.5
"""Points from which the master calls a host suspect, and from which the operator has new pods avoid
it: two jobs at least, both within hours."""

SOURCE_MOST: Final = 1.0
"""Points that the strikes of one other job, or what the node itself shows, count at the most: a
script may crash anywhere."""

NODE_SOURCE: Final = "node"
"""Stands for the job in strikes that the Kubernetes node itself shows; a job has a slash."""


class StrikeCause(enum.StrEnum):
    """A strike against a host."""

    PREFLIGHT = "Preflight"
    """It was slow or faulty before its node joined."""
    STRAGGLER = "Straggler"
    """Its node was slower than the others in a world."""
    HANG = "Hang"
    """A hang was laid to one of its ranks."""
    FAILURE = "Failure"
    """A process or the agent on it ended in a way that hardware can cause."""
    CONDITION = "Condition"
    """A condition of the Kubernetes node says hardware trouble, or a monitor of hardware cordoned
    it."""
    CORDON = "Cordon"
    """Somebody cordoned the Kubernetes node, and nobody knows why."""


WEIGHTS: Final[Mapping[str, float]] = {
    StrikeCause.PREFLIGHT: 1.0,
    StrikeCause.STRAGGLER: 1.0,
    # The script is the cause of most hangs and crashes.
    StrikeCause.HANG: 0.5,
    StrikeCause.FAILURE: 0.5,
    StrikeCause.CONDITION: 1.0,
    # Most cordons are maintenance, after which a node is as good as any.
    StrikeCause.CORDON: 0.1,
}
"""Points of a new strike; a cause that is not here is a newer release's."""


def points_left(cause: str, at: float, now: float) -> float:
    """Return the points of a strike that still count; one from a clock that was ahead is new.

    Both times are Unix times, s.
    """
    return float(WEIGHTS[cause] * 0.5 ** (max(0.0, now - at) / HALF_LIFE_SECONDS))
