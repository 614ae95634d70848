"""Steps that agents guess from collectives: the age of the first one, a world without any.

A guess counts from 0 in each process. So it is compared with nothing but 0, and never with a step
of another round, of a checkpoint or of a barrier.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast_wire.messages import RankProgress, StepSource


def is_guess(item: RankProgress) -> bool:
    """Whether a rank's step is guessed; step 0: its collectives show none yet."""
    return item.step_source is StepSource.COLLECTIVES


def reported_step(item: RankProgress) -> int:
    """The step that a rank has reported itself; 0: none."""
    return 0 if is_guess(item) else item.step


def first_step_age(ranks: Collection[RankProgress]) -> float | None:
    """Return how long ago the last of these ranks completed its first guessed step, s.

    None: some rank has not, or reports its steps itself.
    """
    if not ranks or not all(is_guess(item) and item.step for item in ranks):
        return None
    return min(item.since_step_seconds + (item.step - 1) * item.step_seconds for item in ranks)


def is_stepless(
    ranks: Collection[RankProgress], *, guessed_before: bool, seconds: float, patience: float
) -> bool:
    """Whether a world whose ranks report no steps ended without a guessed one.

    guessed_before: steps of the same script were guessed in an earlier world. A world that ran for
    more than `patience`, the longest time to the first step, may have trained without collectives,
    or with ones that have no period.
    """
    guesses = [item for item in ranks if is_guess(item)]
    stepped = any(item.step for item in guesses)
    return not stepped and seconds < patience and (bool(guesses) or guessed_before)
