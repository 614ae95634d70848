"""Exit rules: ends of workers that the master must know, and evidence of an ended round.

The cause of an exit decides; the consequence is the master's decision.
"""

from __future__ import annotations

import dataclasses

SIGKILL = 9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Actions of this agent against a round."""

    killed: bool
    """The agent sent SIGKILL."""
    stopped: bool
    """The agent sent SIGTERM, so no exit is evidence."""
    lease_expired: bool
    """The lease ran out: the zygote killed everything."""


def is_evidence(exit_code: int, orders: Orders) -> bool:
    """Return True if the master must know of a worker's exit (-N: signal N)."""
    if orders.stopped or orders.lease_expired:
        return False
    return not (orders.killed and exit_code == -SIGKILL)


def is_early_news(exit_code: int, orders: Orders, *, lease_is_stale: bool) -> bool:
    """Return True if a worker that is still being taken down is reported as ended already.

    lease_is_stale: workers kill themselves now, which is no failure, and the zygote is about to
        report the expired lease.

    Only a failure is worth the haste. For an exit code of 0 the agent waits for the process's real
    end, because a main thread that ended alone looks the same; so it does after an order of its
    own.
    """
    if exit_code == 0 or lease_is_stale:
        return False
    return not (orders.killed or orders.stopped or orders.lease_expired)


def tells_stopped(orders: Orders, *, next_waits: bool) -> bool:
    """Return True if the master must be told that no process of the round lives.

    next_waits: the next round is assigned, so the master knows. An expired lease is always
    reported.
    """
    ended = orders.killed or orders.stopped or orders.lease_expired
    return ended and (orders.lease_expired or not next_waits)


def is_shown(orders: Orders) -> bool:
    """Return True if a hello names the round: this agent has not ended it."""
    return not (orders.killed or orders.stopped)
