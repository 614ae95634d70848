"""Due times of the agent's regular work, each with its clock; decisions only.

Heartbeats: a message that reaches an idle master alone costs two to three times as much as one of
several at once (wake-ups, cold caches). So nodes of neighbouring ranks send at one instant of the
wall clock, and groups of neighbours apart. If their clocks differ, they send apart: that costs the
master time, and nothing else. The agent's other regular work is due at the same instants: each time
that an idle process wakes up costs 0.15 ms, and more work then costs little more.

Samples of collectives: a flight recorder keeps a rank's newest ones only, seconds of them. The
master compares what all ranks have issued, so looks that are seconds apart may have nothing in
common. The instants are multiples of a period on the master's clock. Periods are powers of two, so
those of a node that looks seldom are among those of its neighbours. Looks that come together also
delay a step together, and not one after another.

The offset of this node's clock to the master's: from the probe with the shortest way there and back
(Cristian, 1989).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

TOGETHER = 32
"""Nodes that send at one instant: about 3 ms of a master's time, which is no burden."""
_GOLDEN = 0.6180339887498949
"""Its multiples, modulo 1, are spread evenly for any number of them."""


def aligned_pause(node_rank: int, interval: float, period: float, wall: float) -> float:
    """Return the time to the next work of a period, s: half a period to one and a half.

    Of a heartbeat the period is the interval: after one that was due the pause is one interval,
    less its delay. Other work falls on the same instants where one of the two is a multiple.

    node_rank: Rank of the agent's node.
    interval: Time between heartbeats that the master wants, s.
    period: Time between two pieces of that work, s.
    wall: Wall clock, s since 1970; it may jump.
    """
    return until_multiple(period, wall - group_delay(node_rank, interval))


def group_delay(node_rank: int, interval: float) -> float:
    """Return how long after the first group a node's group sends, s; less than an interval."""
    return node_rank // TOGETHER * _GOLDEN % 1.0 * interval


SHORTEST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 32.0
"""Between two looks: a straggler costs minutes, not seconds."""
_SOONER: Final = 1.25
"""A period is the longest that is at most so many times what the cost of a look wants. Looks then
cost 0.8 to 1.6 times what they may; the next longer one would delay verdicts by twice as much."""


def sample_period(wanted: float, longest: float) -> float:
    """Return the time between two looks, s.

    wanted: From which on looks cost no more than they may, s.
    longest: Bound, s: a hang must be seen within its own limit.
    """
    most = min(wanted * _SOONER, longest, LONGEST_SECONDS)
    found = SHORTEST_SECONDS
    while 2 * found <= most:
        found *= 2
    return found


def until_multiple(period: float, clock: float) -> float:
    """Return the time until a clock shows a multiple of a period: half of one to one and a half."""
    rest = -clock % period
    return rest if rest >= period / 2 else rest + period


KEPT: Final = 8
"""Newest answers that are looked at: clocks drift, and a good sample ages."""
DRIFT: Final = 50e-6
"""Seconds by which two clocks may part in a second: quartz, not disciplined."""
_SET: Final = 1e-3
"""Change between a node's two clocks, s, from which on one was set: NTP slews both alike, and
between the readings of the two a process may wait."""


def was_set(before: float, now: float) -> bool:
    """Return True if somebody has set the Unix clock between two looks.

    before, now: How far it was ahead of the monotonic clock, s.
    """
    return abs(now - before) > _SET


@dataclasses.dataclass(frozen=True, slots=True)
class ClockAnswer:
    """One answered probe; Unix times, s."""

    sent: float
    """Own clock."""
    master: float
    received: float
    """Own clock."""


@dataclasses.dataclass(frozen=True, slots=True)
class ClockOffset:
    """An estimate, s."""

    seconds: float
    """To be added to the own clock for the master's."""
    error: float
    """Bound of the error."""


def estimate(answers: Sequence[ClockAnswer], now: float) -> ClockOffset | None:
    """Return the offset from the best of the newest answers; None: there is none.

    An answer in which the own clock was set in between is left out: it shows a negative way. So is
    one that contradicts the newest: a clock was set since.
    """
    sane = [one for one in answers[-KEPT:] if 0 <= one.received - one.sent <= now - one.sent + 1]
    if not sane:
        return None
    agree = [one for one in sane if _agrees(one, sane[-1], now)]
    best = min(agree, key=lambda one: _error(one, now))
    return ClockOffset(_offset(best), _error(best, now))


def _agrees(one: ClockAnswer, newest: ClockAnswer, now: float) -> bool:
    return abs(_offset(one) - _offset(newest)) <= _error(one, now) + _error(newest, now)


def _offset(one: ClockAnswer) -> float:
    return one.master - (one.sent + one.received) / 2


def _error(one: ClockAnswer, now: float) -> float:
    return (one.received - one.sent) / 2 + DRIFT * max(0.0, now - one.received)
