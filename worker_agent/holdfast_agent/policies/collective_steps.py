"""Steps of a script that reports none, guessed from its collectives; decisions only.

A training step issues the same collectives in the same order, so their sequence is periodic. A
model of equal layers repeats itself within a step as well: there the step is the longer period, at
whose end the script pauses. Where a rank reports its steps, the collectives of a step are counted
between two of them; one look may have an evaluation in between, so two in a row must agree before
a length changes. The guess counts periods from the first collective that was seen. Where each
micro-batch reduces its gradients, a micro-batch counts as a step.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence
from typing import Final

LEAST_PERIODS: Final = 3
"""Periods that must be seen before one is believed."""
LEAST_MATCH: Final = 0.85
"""Share of collectives that must equal those one period before: a loss that is summed each 50 steps
does not end a period."""
_BORDER: Final = 2.0
"""Times of nearly all other pauses between collectives that the pause between two steps has: there
the script updates its weights, loads a batch and computes forward."""
_OTHERS: Final = 0.98
"""Share of the other pauses that must be so short: a rank waits for a CPU now and then."""
_EXTRA: Final = 0.15
"""Collectives of a reported step, in the mean, that are not of each step: a loss that is summed
each 50 steps."""


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
class StepMark:
    """A moment at which a rank had completed so many steps, as its script reports them."""

    step: int
    at: float
    """Unix time of the node's own clock, s."""


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
    reported: tuple[int, int] = (0, 0)
    """A step that the script has reported, and the newest collective that was issued by then;
    zeros: none was seen."""
    between: int = 0
    """Collectives of a step between the two newest reported ones that told it; 0: none did."""

    @property
    def step(self) -> int:
        """Completed steps."""
        return int(self.steps)


def period(signatures: Sequence[int]) -> int:
    """Return the shortest period of a sequence; 0: there is none."""
    longest = len(signatures) // LEAST_PERIODS
    return next((one for one in range(1, longest + 1) if _repeats(signatures, one)), 0)


def _repeats(signatures: Sequence[int], length: int) -> bool:
    """Return True if the sequence has this period."""
    pairs = len(signatures) - length
    same = sum(map(int.__eq__, signatures[length:], signatures[:-length]))
    return same >= LEAST_MATCH * pairs


def step_length(window: GroupWindow, known: int = 0) -> int:
    """Return the collectives of a step; 0: there is no period.

    known: what was found before. It stays while it is a period: not each look shows its end.
    """
    signatures, issued = window.signatures, window.issued
    shortest = period(signatures)
    if not shortest:
        return 0
    if known > shortest and len(signatures) > known and _repeats(signatures, known):
        return known
    pauses = [later - sooner for later, sooner in zip(issued[1:], issued, strict=False)]
    for length in range(shortest + 1, len(signatures) // LEAST_PERIODS + 1):
        if _ends_each(pauses, length) and _repeats(signatures, length):
            return length
    return shortest


def _ends_each(pauses: Sequence[float], length: int) -> bool:
    """Return True if one pause in so many, and no other, is long: the script is between steps."""
    least = [min(pauses[at::length]) for at in range(length)]
    border = max(range(length), key=least.__getitem__)
    others = sorted(one for at, one in enumerate(pauses) if at % length != border)
    return least[border] >= _BORDER * others[int(_OTHERS * (len(others) - 1))]


def advance(
    known: StepGuess, windows: Sequence[GroupWindow], mark: StepMark | None = None
) -> StepGuess:
    """Return the guess after another look at a rank's collectives.

    A group that has been counted stays the one that is counted, as long as it goes on.

    mark: the newest step that the script has reported; None: it reports none.
    """
    best = _counted(known, windows, mark)
    if best is None:
        return dataclasses.replace(known, expected=not known.period and _are_whole(windows))
    same = known.group == best.group
    before = known if same else StepGuess()
    reported = _reported(best, mark)
    told = _between(before.reported, reported) if mark else 0
    length = _length(before, told, best, mark)
    if not length:
        return dataclasses.replace(known, group=best.group, reported=reported) if mark else known
    new = max(0, best.last - before.last)
    return StepGuess(
        group=best.group,
        period=length,
        steps=known.steps + new / length,
        last=best.last,
        step_seconds=_step_seconds(best.issued, length) or known.step_seconds,
        at=best.issued[-1],
        reported=reported if any(reported) else before.reported,
        between=told or before.between,
    )


def _length(before: StepGuess, told: int, window: GroupWindow, mark: StepMark | None) -> int:
    """Return the collectives of a step; 0: that is not known yet.

    told: what this look's reported steps say; 0: nothing. A loss that is summed now and then, or an
    evaluation, is in one look and not in the next.
    """
    if told and before.between in {0, told}:
        return told
    if mark is None or (any(before.reported) and not before.period):
        return step_length(window, before.period) or before.period
    return before.period


def _reported(window: GroupWindow, mark: StepMark | None) -> tuple[int, int]:
    """Return the reported step and the newest collective by then; zeros: it is not known."""
    if mark is None or mark.step <= 0 or not window.issued[0] <= mark.at:
        return 0, 0
    return mark.step, window.first + bisect.bisect_right(window.issued, mark.at) - 1


def _between(before: tuple[int, int], now: tuple[int, int]) -> int:
    """Return the collectives of a step between two reported ones; 0: that is not known."""
    steps, count = now[0] - before[0], now[1] - before[1]
    if not any(before) or not any(now) or steps <= 0 or count < steps:
        return 0
    length, more = divmod(count, steps)
    return length if more <= _EXTRA * steps else 0


def _counted(
    known: StepGuess, windows: Sequence[GroupWindow], mark: StepMark | None
) -> GroupWindow | None:
    """Return the window to count in: that of the known group, else the longest with a period.

    Where steps are reported no period needs to be seen: a step may be longer than the window.
    """
    there = [one for one in windows if one.signatures]
    for one in there:
        if one.group == known.group and one.last > known.last:
            return one
    periodic = [one for one in there if mark is not None or period(one.signatures)]
    return max(periodic, key=lambda one: len(one.signatures), default=None)


def _are_whole(windows: Sequence[GroupWindow]) -> bool:
    """Return True if the windows hold every collective of their groups, and at least one."""
    there = [one for one in windows if one.signatures]
    return bool(there) and all(one.first <= 1 for one in there)


def _step_seconds(issued: Sequence[float], length: int) -> float:
    """Return the median time between two collectives one period apart; 0: too few."""
    times = sorted(
        later - sooner for later, sooner in zip(issued[length:], issued[:-length], strict=True)
    )
    return times[len(times) // 2] if times else 0.0
