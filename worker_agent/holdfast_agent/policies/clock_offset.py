"""The offset of this node's clock to the master's, from probes on the stream; decisions only.

Belongs here: the estimate, the bound of its error, a clock that was set. Does not belong here:
sending probes (`health.sampler`). Method: the sample with the shortest way there and back
(Cristian, 1989).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

KEPT: Final = 8
"""Newest answers that are looked at: clocks drift, and a good sample ages."""
DRIFT: Final = 50e-6
"""Seconds by which two clocks may part in a second: quartz, not disciplined."""
_SET: Final = 1e-3
"""Change between a node's two clocks, s, from which on one was set: NTP slews both alike, and
between the readings of the two a process may wait."""


@dataclasses.dataclass(frozen=True, slots=True)
class ClockReading:
    """Both clocks of this node at one moment, s."""

    unix: float
    monotonic: float


def was_set(before: ClockReading, now: ClockReading) -> bool:
    """Return whether somebody has set the Unix clock between two readings."""
    passed = now.monotonic - before.monotonic
    return abs(now.unix - before.unix - passed) > _SET


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
