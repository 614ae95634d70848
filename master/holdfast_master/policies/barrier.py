"""Barrier policy: the step after which every rank saves and stops."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from holdfast_master.policies.quantities import counted

UNKNOWN_PACE = 0.05
"""s: assumed of a step where no rank has reported one; short, so that the margin is large."""
FASTEST_PACE = 1e-4
"""s: no training step is shorter; a report that says so would make the margin endless."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The last progress that one rank reported."""

    step: int
    """Completed steps."""
    step_seconds: float
    """Time of its last step, s; 0: not known, UNKNOWN_PACE is assumed."""
    since_step_seconds: float
    """Since its last completed step when it was reported, s."""
    age: float
    """Since the report, s."""


def reach(sightings: Iterable[Sighting], newest: int) -> int:
    """The newest step that some rank has completed by now; `newest` was reported.

    A rank that had stood still for two steps when it reported is taken to stand still, and so is
    one whose pace is not known.
    """
    for item in sightings:
        pace = max(item.step_seconds, FASTEST_PACE)
        moving = item.step_seconds > 0 and item.since_step_seconds < 2 * pace
        ahead = int((item.age + item.since_step_seconds) / pace) if moving else 0
        newest = max(newest, item.step + ahead)
    return newest


@dataclasses.dataclass(frozen=True, slots=True)
class BarrierStep:
    """The barrier's step, and the time at which it should have been reached."""

    step: int
    expected_seconds: float
    """From now until the estimate says that the step is complete, s."""
    reason: str


def choose(
    sightings: Iterable[Sighting],
    *,
    latency: float,
    tries: int,
    not_before: int = 0,
) -> BarrierStep:
    """A step that no rank has begun when the barrier reaches it.

    The newest step is extrapolated from each rank's last report; the margin is twice the latency
    (s, from here to the rank's page, heartbeat interval included) in steps, plus two. Each earlier
    try that came too late doubles the margin. `not_before`: a step that some rank has passed.
    """
    newest, fastest = not_before, math.inf
    for item in sightings:
        pace = max(item.step_seconds, FASTEST_PACE) if item.step_seconds > 0 else UNKNOWN_PACE
        # One that stood still when it reported had not begun its next step long ago: it has no more
        # than that one done. A drain during a long evaluation must not wait for a thousand steps.
        ahead = int((item.age + min(item.since_step_seconds, pace)) / pace)
        newest = max(newest, item.step + ahead)
        fastest = min(fastest, pace)
    if math.isinf(fastest):
        fastest = UNKNOWN_PACE
    margin = (math.ceil(2 * latency / fastest) + 2) << tries
    text = f"step {newest} may be complete by now, the margin is {counted(margin, 'step')}"
    return BarrierStep(newest + margin, margin * fastest, text)
