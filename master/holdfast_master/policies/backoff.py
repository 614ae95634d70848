"""Restart backoff: the pause before the next round after restarts without progress.

Belongs here: the pause, which grows from restart to restart. Does not belong here: progress
(`job.state`), the number of restarts that a job may have (`failure`).

The first restart without progress is at once, as any other: a second fault can follow on the first
one by chance. What fails twice in a row fails for a reason that lasts, such as storage that is
away; the budget should last until that is over. There is no jitter: one job has one master, and
nobody else restarts at its time.
"""

from __future__ import annotations

import dataclasses

_AT_ONCE = 1
"""Restarts without progress that do not wait."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BackoffSchedule:
    """The growth of the pause, s."""

    first: float
    """The first pause; each further one is twice as long."""
    longest: float


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """The pause before one restart, with its reason."""

    seconds: float
    reason: str


def decide(in_a_row: int, schedule: BackoffSchedule) -> Pause:
    """Decide the pause before a restart.

    Args:
        in_a_row: Restarts without a new step so far, with this one; 0: there was a new step.
        schedule: How the pause grows.

    Returns:
        The pause, s from the end of the failed round; 0: none.
    """
    doublings = in_a_row - _AT_ONCE - 1
    if doublings < 0:
        return Pause(0.0, "the first restart is at once")
    # The exponent is bounded: a budget may allow thousands of restarts.
    seconds = min(schedule.longest, schedule.first * 2.0 ** min(doublings, 32))
    text = f"restart {in_a_row} in a row without a new step begins after {seconds:g} s"
    return Pause(seconds, text)
