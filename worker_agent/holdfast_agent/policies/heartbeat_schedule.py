"""Heartbeat schedule: neighbours send together, groups of neighbours send apart.

A message that reaches an idle master alone costs two to three times as much as one of several at
once: wake-ups and cold caches. So nodes of neighbouring ranks send at one instant of the wall
clock. If their clocks differ, they send apart: that costs the master time, and nothing else.

The agent's other regular work is due at the same instants: each time that an idle process wakes up
costs 0.15 ms, and more work then costs little more.
"""

from __future__ import annotations

TOGETHER = 32
"""Nodes that send at one instant: about 3 ms of a master's time, which is no burden."""
_GOLDEN = 0.6180339887498949
"""Its multiples, modulo 1, are spread evenly for any number of them."""


def pause(node_rank: int, interval: float, wall: float) -> float:
    """Return the time to the next heartbeat, s: half an interval to one and a half.

    After a heartbeat that was due it is one interval, less its delay.

    Args:
        node_rank: Rank of the agent's node.
        interval: Time between heartbeats that the master wants, s.
        wall: Wall clock, s since 1970; it may jump.
    """
    return beside(node_rank, interval, interval, wall)


def beside(node_rank: int, interval: float, period: float, wall: float) -> float:
    """Return the time to the next work of another period, s: half a period to one and a half.

    Heartbeats fall on the same instants where one of the two is a multiple of the other.

    Args:
        node_rank: Rank of the agent's node.
        interval: Time between heartbeats that the master wants, s.
        period: Time between two pieces of that work, s.
        wall: Wall clock, s since 1970; it may jump.
    """
    rest = (delay(node_rank, interval) - wall) % period
    return rest if rest >= period / 2 else rest + period


def delay(node_rank: int, interval: float) -> float:
    """Return how long after the first group a node's group sends, s; less than an interval."""
    return node_rank // TOGETHER * _GOLDEN % 1.0 * interval
