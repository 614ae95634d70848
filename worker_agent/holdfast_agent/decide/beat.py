"""When the next heartbeat is due: together with some neighbours', apart from everybody else's.

A message that reaches an idle master alone costs it two to three times what one of several at once
costs: wake-ups and cold caches. So nodes of neighbouring ranks send at one instant of the wall
clock. Where clocks are apart, they send apart: that costs the master time, and nothing else.
"""

from __future__ import annotations

TOGETHER = 32
"""Nodes that send at one instant: about 3 ms of a master's time, which nobody notices."""
_GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, are spread evenly however many they are."""


def pause(node_rank: int, interval: float, wall: float) -> float:
    """Return the time from one heartbeat to the next, s: half to one and a half intervals.

    After a heartbeat that was sent when it was due it is one interval, less what it was late.

    Args:
        node_rank: of the agent.
        interval: between heartbeats as the master wants them, s.
        wall: the wall clock, s since 1970; may jump.
    """
    offset = node_rank // TOGETHER * _GOLDEN % 1.0 * interval
    rest = (offset - wall) % interval
    return rest if rest >= interval / 2 else rest + interval
