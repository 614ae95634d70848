"""Sample schedule: all nodes look at their ranks' collectives at the same instants.

Belongs here: the time between two looks, the next instant. Does not belong here: what a look costs
and how it is made (`health.sampler`).

A flight recorder keeps a rank's newest collectives only, seconds of them. The master compares what
all ranks have issued, so looks that are seconds apart may have nothing in common. The instants are
multiples of a period on the master's clock. Periods are powers of two, so those of a node that
looks seldom are among those of its neighbours. Looks that come together also delay a step together,
and not one after another.
"""

from __future__ import annotations

from typing import Final

SHORTEST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 32.0
"""Between two looks: a straggler costs minutes, not seconds."""
_SOONER: Final = 1.25
"""A period is the longest that is at most so many times what the cost of a look wants. Looks then
cost 0.8 to 1.6 times what they may; the next longer one would delay verdicts by twice as much."""


def period(wanted: float, longest: float) -> float:
    """Return the time between two looks, s.

    Args:
        wanted: From which on looks cost no more than they may, s.
        longest: Bound, s: a hang must be seen within its own limit.
    """
    most = min(wanted * _SOONER, longest, LONGEST_SECONDS)
    found = SHORTEST_SECONDS
    while 2 * found <= most:
        found *= 2
    return found


def until_next(period: float, master_clock: float) -> float:
    """Return the time to the next look, s: half a period to one and a half.

    Args:
        period: Time between two looks, s.
        master_clock: The master's clock, Unix time, s; the own one while the offset is not known.
    """
    rest = -master_clock % period
    return rest if rest >= period / 2 else rest + period
