"""Steps of a script that reports none, guessed from its collectives; decisions only.

Belongs here: the period of a sequence of signatures, the count of periods. Does not belong here:
asking a rank (`health.sampler`), lags between ranks (the master's `policies.collectives`).

A training step issues the same collectives in the same order, so their sequence is periodic. The
guess counts periods from the first collective that was seen. Where each micro-batch reduces its
gradients, a micro-batch counts as a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

LEAST_PERIODS: Final = 3
"""Periods that must be seen before one is believed."""
LEAST_MATCH: Final = 0.85
"""Share of collectives that must equal those one period before: a loss that is summed each 50 steps
does not end a period."""


@dataclasses.dataclass(frozen=True, slots=True)
class GroupWindow:
    """The newest collectives of one process group on one rank; consecutive."""

    group: str
    first: int
    """Sequence number of the first one; each next one has the next number."""
    signatures: tuple[int, ...]
    """CRC-32 of operation, sizes and dtypes."""
    issued: tuple[float, ...]
    """Unix time of the node's own clock, s."""

    @property
    def last(self) -> int:
        """Sequence number of the newest one."""
        return self.first + len(self.signatures) - 1


@dataclasses.dataclass(frozen=True, slots=True)
class StepGuess:
    """The guessed progress of one rank in its process."""

    group: str = ""
    """Group whose collectives are counted; empty: no period was seen yet."""
    period: int = 0
    """Collectives of a step."""
    steps: float = 0.0
    """Periods since the first collective."""
    last: int = 0
    """Sequence number of the newest collective that is counted."""
    step_seconds: float = 0.0
    """Median time between collectives one period apart, s."""
    expected: bool = False
    """Collectives were seen and none was missed, and they have no period yet: no step is complete.
    False where some were missed: what had no period by then may never have one."""
    at: float = 0.0
    """Time of issue of the newest collective, Unix time of the node, s."""

    @property
    def step(self) -> int:
        """Completed steps."""
        return int(self.steps)


def period(signatures: Sequence[int]) -> int:
    """Return the shortest period of a sequence; 0: there is none."""
    count = len(signatures)
    for length in range(1, count // LEAST_PERIODS + 1):
        pairs = count - length
        same = sum(
            one == other
            for one, other in zip(signatures[length:], signatures[:-length], strict=True)
        )
        if same >= LEAST_MATCH * pairs:
            return length
    return 0


def advance(known: StepGuess, windows: Sequence[GroupWindow]) -> StepGuess:
    """Return the guess after another look at a rank's collectives.

    A group that has been counted stays the one that is counted, as long as it goes on.
    """
    best = _counted(known, windows)
    if best is None:
        return dataclasses.replace(known, expected=not known.period and _are_whole(windows))
    length = period(best.signatures) or (known.period if known.group == best.group else 0)
    if not length:
        return known
    before = known.last if known.group == best.group else 0
    new = max(0, best.last - before)
    return StepGuess(
        group=best.group,
        period=length,
        steps=known.steps + new / length,
        last=best.last,
        step_seconds=_step_seconds(best.issued, length) or known.step_seconds,
        at=best.issued[-1],
    )


def _counted(known: StepGuess, windows: Sequence[GroupWindow]) -> GroupWindow | None:
    """Return the window to count in: that of the known group, else the longest with a period."""
    there = [one for one in windows if one.signatures]
    for one in there:
        if one.group == known.group and one.last > known.last:
            return one
    periodic = [one for one in there if period(one.signatures)]
    return max(periodic, key=lambda one: len(one.signatures), default=None)


def _are_whole(windows: Sequence[GroupWindow]) -> bool:
    """Return whether the windows hold every collective of their groups, and at least one."""
    there = [one for one in windows if one.signatures]
    return bool(there) and all(one.first <= 1 for one in there)


def _step_seconds(issued: Sequence[float], length: int) -> float:
    """Return the median time between two collectives one period apart; 0: too few."""
    times = sorted(
        later - sooner for later, sooner in zip(issued[length:], issued[:-length], strict=True)
    )
    return times[len(times) // 2] if times else 0.0
