"""Which ends of workers are news for the master, and what a round that was ended still shows.

Who caused an end decides; what the news means is the master's.
"""

from __future__ import annotations

import dataclasses

SIGKILL = 9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What this agent did to a round."""

    killed: bool
    """It sent SIGKILL."""
    stopped: bool
    """It sent SIGTERM, so no exit is evidence."""
    lease_expired: bool
    """The lease ran out: the zygote killed everything."""


def is_evidence(exit_code: int, orders: Orders) -> bool:
    """Whether a worker's end (-N: signal N) says something that the master must know."""
    if orders.stopped or orders.lease_expired:
        return False
    return not (orders.killed and exit_code == -SIGKILL)


def is_early_news(exit_code: int, orders: Orders, *, lease_is_stale: bool) -> bool:
    """Whether a worker that is still being taken down is reported as ended already.

    lease_is_stale: workers kill themselves now, which is no failure, and the zygote is about to
        say that the lease has run out.

    Only a failure is worth the haste. A 0 waits for the process's real end, because a main thread
    that ended alone looks the same; so does what this agent has ordered.
    """
    if exit_code == 0 or lease_is_stale:
        return False
    return not (orders.killed or orders.stopped or orders.lease_expired)


def tells_stopped(orders: Orders, *, next_waits: bool) -> bool:
    """Whether the master is told that nothing of the round lives any more.

    next_waits: the next round is assigned, so the master knows; an expired lease is told anyway.
    """
    ended = orders.killed or orders.stopped or orders.lease_expired
    return ended and (orders.lease_expired or not next_waits)


def is_shown(orders: Orders) -> bool:
    """Whether a hello names the round: not one that this agent has ended."""
    return not (orders.killed or orders.stopped)
