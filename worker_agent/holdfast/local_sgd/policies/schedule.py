"""Schedule of rounds: which step is local, which one ends a round, by steps or by time.

Belongs here: warm-up, interval, A-EDiT's trigger, the last round at the end of the data. Does not
belong here: the choice of the interval (`switching`).

All counts are of completed steps of the inner optimizer, over the whole training. So a resume, and
a replica that joins with the others' count, end their rounds at the same steps as the others.

EDiT, for W and H: steps 1 to W reduce gradients. At W all replicas are equal and take the anchors:
this is round 0, with nothing to exchange. Round k ends after step W + kH.

A-EDiT: a replica whose time is up *triggers* the round, at the end of a step. It sets the key
`Turn.key` in the store of the sync group. All look at this key at the end of each step, and enter
the round there. So the first one waits for about one step of the slowest. If all together have
made too few steps, they go on without a round, and their time starts again.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from holdfast.local_sgd.config import LocalSGDConfig


class Boundary(enum.Enum):
    """The end of a completed step."""

    NOTHING = "nothing"
    ANCHORS = "anchors"
    """The warm-up is over: A := θ, which are equal everywhere."""
    ROUND = "round"
    """The replicas agree on new weights."""
    GRADIENTS = "gradients"
    """They do so a last time; from now on gradients are averaged in each step."""


def is_warm_up(step: int, settings: LocalSGDConfig) -> bool:
    """Return True if all replicas reduce the gradients of the step after this many."""
    return step < settings.local_sgd_warmup_steps


def boundary(step: int, settings: LocalSGDConfig) -> Boundary:
    """Return the end of this many completed steps; 0 is the state before the first one.

    With A-EDiT a round follows from `is_triggering`, never from the number of steps.
    """
    local = step - settings.local_sgd_warmup_steps
    if local < 0:
        return Boundary.NOTHING
    if local == 0:
        return Boundary.ANCHORS
    if settings.use_async or local % settings.local_sgd_sync_interval:
        return Boundary.NOTHING
    return Boundary.ROUND


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One replica's time until the next round of A-EDiT."""

    round: int
    """Rounds that were made."""
    attempt: int = 0
    """Times that this round was left out for too few steps."""
    started: float
    """When its time started, s of this replica's monotonic clock."""
    steps: int = 0
    """Its steps since the last round that was made."""
    exhausted: bool = False
    """It has no more data. It makes no step, and joins all rounds until the last."""

    @property
    def key(self) -> str:
        """Key of the store that triggers the round; each attempt has its own."""
        return f"round/{self.round}/{self.attempt}"


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """A replica's report to the others when it enters."""

    steps: int
    """Since the last round that was made."""
    exhausted: bool = False
    """It has no more data."""


class Entry(enum.Enum):
    """The next act of all replicas that have entered together."""

    SKIP = "skip"
    """Train on; the time starts again."""
    ROUND = "round"
    LAST = "last"
    """Make the round, and end the training: nobody has data."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entered:
    """The decision, and why; the same on all replicas."""

    entry: Entry
    reason: str


def stepped(turn: Turn) -> Turn:
    """Return the turn after one more step of the optimizer."""
    return dataclasses.replace(turn, steps=turn.steps + 1)


def is_triggering(
    turn: Turn, now: float, settings: LocalSGDConfig, *, all_exhausted: bool = False
) -> bool:
    """Return True if this replica starts the round, at the end of a step.

    Args:
        turn: Its time.
        now: Seconds of the monotonic clock that gave `turn.started`.
        settings: τ.
        all_exhausted: No replica has data, so nobody waits for τ.

    Raises:
        ValueError: the clock went back, as a wall clock may.
    """
    if now < turn.started:
        raise ValueError(
            f"now={now} is before started={turn.started}: give time.monotonic(), of one process"
        )
    return all_exhausted or now - turn.started >= settings.local_sgd_sync_time


def enter(progress: Sequence[ReplicaProgress], settings: LocalSGDConfig) -> Entered:
    """Return the next act of replicas that have all entered, from their reports.

    The last round is made however few the steps are; else the deltas of the last steps were lost.
    """
    total = sum(one.steps for one in progress)
    if all(one.exhausted for one in progress):
        return Entered(Entry.LAST, f"no replica has more data: last round, after {total} steps")
    least = settings.min_total_global_steps
    if total < least:
        return Entered(
            Entry.SKIP, f"{total} steps of all replicas since the last round, {least} are the least"
        )
    return Entered(Entry.ROUND, f"{total} steps of all replicas since the last round")


def after(turn: Turn, entry: Entry, now: float) -> Turn:
    """Return the turn that follows; only a round that was made sets the steps to 0."""
    if entry is Entry.SKIP:
        return dataclasses.replace(turn, attempt=turn.attempt + 1, started=now)
    return dataclasses.replace(turn, round=turn.round + 1, attempt=0, started=now, steps=0)
