"""The time without progress after which a world counts as hanging, learned from its own past."""

from __future__ import annotations

import bisect
import dataclasses
import enum
import math
from collections.abc import Iterable

from holdfast_master.policies.quantities import in_words
from holdfast_wire.messages import HangPolicy, RankSection

GROWTH = 1.1
"""A bucket of a sketch ends at this times its beginning: a quantile is at most 10 % too high."""
_SHORTEST_SECONDS = 1e-4
_LONGEST_SECONDS = 1e6
_BUCKETS = math.ceil(math.log(_LONGEST_SECONDS / _SHORTEST_SECONDS, GROWTH)) + 1
_ENDS = tuple([_SHORTEST_SECONDS * GROWTH**at for at in range(_BUCKETS)])
"""The longest duration of each bucket, s."""
_MOST = 2048
"""Durations in a sketch. At this number all counts are halved: newer ones count more."""
_QUANTILE = 0.99
MIN_STEPS = 5
"""Before that many steps the pace of a world is not known: the first ones compile, too."""
_LONGEST_PAUSES = 2.0
"""Times the longest pause that ended by itself: a script that tells no sections evaluates, saves
and begins epochs, too rarely for a 99th percentile of its steps."""


@dataclasses.dataclass(frozen=True, slots=True)
class Durations:
    """A sketch of durations: how many lie in each bucket of an exponential scale."""

    counts: tuple[int, ...] = (0,) * _BUCKETS

    @property
    def number(self) -> int:
        """Number of durations, those that were forgotten left out."""
        return sum(self.counts)


def learn(past: Durations, seconds: float, times: int = 1) -> Durations:
    """The sketch with a duration that was seen so often; an impossible one adds nothing."""
    if not 0 <= seconds < math.inf or times < 1:
        return past
    counts = list(past.counts)
    if sum(counts) >= _MOST:
        counts = [count // 2 for count in counts]
    counts[min(bisect.bisect_left(_ENDS, seconds), _BUCKETS - 1)] += min(times, MIN_STEPS)
    return Durations(tuple(counts))


def quantile(past: Durations, share: float) -> float:
    """A bound that `share` of the durations do not exceed, s; 0: none is known."""
    wanted = math.ceil(share * past.number)
    seen = 0
    for end, count in zip(_ENDS, past.counts, strict=True):
        seen += count
        if count and seen >= wanted:
            return end
    return 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LearnedTimes:
    """A world's pace so far. It begins anew with each world: sizes change the pace."""

    steps: Durations = Durations()
    """Time of a step, without evaluations and checkpoints."""
    evaluations: Durations = Durations()
    """Time in the section."""
    checkpoints: Durations = Durations()
    """Time in the section."""
    pauses: Durations = Durations()
    """Time between collectives, where no steps are known."""
    longest_pause: float = 0.0
    """The longest silence that ended by itself, s. It is known to the next worlds of the job, too:
    their epochs begin as slowly."""


class Phase(enum.Enum):
    """The phase of a world without progress; each has a limit of its own."""

    FIRST_STEP = "the first step"
    TRAIN = "training"
    EVALUATION = "an evaluation"
    CHECKPOINT = "a checkpoint"
    COLLECTIVES = "training without known steps"
    PAUSED = "a pause that the master ordered"


_PHASES = {
    RankSection.UNSPECIFIED: Phase.COLLECTIVES,
    RankSection.INIT: Phase.FIRST_STEP,
    RankSection.FIRST_STEP: Phase.FIRST_STEP,
    RankSection.TRAIN: Phase.TRAIN,
    RankSection.EVAL: Phase.EVALUATION,
    RankSection.CHECKPOINT: Phase.CHECKPOINT,
    # What a script does at its end is as little known as what it does before its first step.
    RankSection.FINISHING: Phase.FIRST_STEP,
}


_STEPPING = frozenset({Phase.TRAIN, Phase.COLLECTIVES})
"""Phases whose limits a pause prolongs; the others have times of their own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """The longest time without progress that is no hang."""

    seconds: float
    """Infinite: nothing is a hang."""
    reason: str


def learn_pause(
    past: LearnedTimes,
    seconds: float,
    found: Iterable[Phase],
    policy: HangPolicy,
    *,
    ordinary: bool,
) -> LearnedTimes:
    """Return the lesson of a silence that a step has ended, such as an evaluation.

    Args:
        past: What was learned before.
        seconds: Its length.
        found: All phases that a rank was in meanwhile. A first step, a section or a pause that the
            master ordered tells nothing of training.
        policy: `spec.health.hang`.
        ordinary: It will come again. Else it counts only among the times between collectives.
    """
    if seconds <= policy.min_seconds / 2 or not _STEPPING.issuperset(found):
        return past
    if ordinary:
        return dataclasses.replace(past, longest_pause=max(past.longest_pause, seconds))
    if past.pauses.number:
        return dataclasses.replace(past, pauses=learn(past.pauses, seconds))
    return past


def phases(sections: Iterable[RankSection], *, paused: bool) -> frozenset[Phase]:
    """The phases that the ranks of a world are in.

    paused: the master has the world wait: a barrier, a flush, a restore, a suspended job.
    """
    if paused:
        return frozenset({Phase.PAUSED})
    found = frozenset([_PHASES[section] for section in sections])
    # Where one rank tells its section, steps are known.
    return found - {Phase.COLLECTIVES} or found or frozenset({Phase.FIRST_STEP})


def judge(
    found: Iterable[Phase], since_seconds: float, learned: LearnedTimes, policy: HangPolicy
) -> str:
    """Return why a world that makes no progress hangs; empty: it does not yet.

    Args:
        found: The phases of its ranks. The most patient one counts: while one rank saves, the
            others wait for it.
        since_seconds: Time since the last progress, s: a step, a section's begin or end; where no
            steps are known, a collective.
        learned: What the world has shown.
        policy: `spec.health.hang`; its mode is the caller's.
    """
    longest = max(
        [limit(phase, learned, policy) for phase in sorted(found, key=lambda phase: phase.name)],
        key=lambda one: one.seconds,
    )
    if since_seconds <= longest.seconds:
        return ""
    return f"no progress for {in_words(since_seconds)}; {longest.reason}"


def limit(phase: Phase, learned: LearnedTimes, policy: HangPolicy) -> Limit:
    """The limit of a phase, with its reason."""
    if phase is Phase.PAUSED:
        return Limit(math.inf, f"{phase.value} is no hang")
    if phase is Phase.FIRST_STEP:
        return _first(phase, policy)
    if phase is Phase.COLLECTIVES:
        return _between_collectives(learned, policy)
    past, fewest = {
        Phase.TRAIN: (learned.steps, MIN_STEPS),
        Phase.EVALUATION: (learned.evaluations, 1),
        Phase.CHECKPOINT: (learned.checkpoints, 1),
    }[phase]
    if past.number < fewest:
        return _first(phase, policy)
    pause = learned.longest_pause if phase is Phase.TRAIN else 0.0
    return _learned(phase.value, quantile(past, _QUANTILE), pause, policy)


def longest_work(policy: HangPolicy) -> Limit:
    """The time without progress after which ranks that compute are a hang, too."""
    return _first(Phase.FIRST_STEP, policy)


def _first(phase: Phase, policy: HangPolicy) -> Limit:
    """The limit of what was not seen yet: that of the first step."""
    seconds = max(policy.first_step_seconds, policy.min_seconds)
    unknown = "" if phase is Phase.FIRST_STEP else ", as for a first step: too few were seen"
    return Limit(seconds, f"the limit of {phase.value} is {in_words(seconds)}{unknown}")


def _between_collectives(learned: LearnedTimes, policy: HangPolicy) -> Limit:
    if learned.pauses.number < MIN_STEPS:
        return _first(Phase.COLLECTIVES, policy)
    pause = max(learned.longest_pause, quantile(learned.pauses, 1.0))
    usual = quantile(learned.pauses, _QUANTILE)
    return _learned("what comes between collectives", usual, pause, policy)


def _learned(what: str, usual: float, longest_pause: float, policy: HangPolicy) -> Limit:
    """The limit that the past gives; a pause gives no more than a first step has."""
    pause = min(_LONGEST_PAUSES * longest_pause, longest_work(policy).seconds)
    seconds = max(policy.min_seconds, policy.step_time_factor * usual, pause)
    origin = f"{_LONGEST_PAUSES:g} times the longest pause so far"
    if seconds > pause:
        origin = _origin(seconds, usual, policy)
    return Limit(seconds, f"the limit of {what} is {in_words(seconds)}, {origin}")


def _origin(seconds: float, usual: float, policy: HangPolicy) -> str:
    if seconds > policy.min_seconds:
        return f"{policy.step_time_factor:g} times the 99th percentile of {in_words(usual)}"
    return f"the least: {policy.step_time_factor:g} usual ones of {in_words(usual)} are less"
