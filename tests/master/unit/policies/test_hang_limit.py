"""The time without progress that counts as a hang, learned from the world's own past."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.hang_limit import (
    GROWTH,
    MIN_STEPS,
    Durations,
    LearnedTimes,
    Phase,
    judge,
    learn,
    learn_pause,
    limit,
    phases,
    quantile,
)
from holdfast_wire.messages import HangPolicy, HealthMode, RankSection

POLICY = HangPolicy(
    mode=HealthMode.REPORT, step_time_factor=10.0, min_seconds=60.0, first_step_seconds=1800.0
)


def durations(many: Iterable[float]) -> Durations:
    """Return the sketch of durations, s."""
    past = Durations()
    for seconds in many:
        past = learn(past, seconds)
    return past


FAST = LearnedTimes(steps=durations([0.5] * 100))
SLOW = LearnedTimes(
    steps=durations([20.0] * 100),
    evaluations=durations([100.0]),
    checkpoints=durations([1.0, 30.0]),
    pauses=durations([0.01] * 1000),
)
TABLE = [
    # phase, learned, the limit, what the reason names
    (Phase.FIRST_STEP, FAST, 1800, "the first step"),
    (Phase.TRAIN, FAST, 60, "the least"),
    (Phase.TRAIN, SLOW, 200, "10 times the 99th percentile"),
    (Phase.TRAIN, LearnedTimes(), 1800, "too few were seen"),
    (Phase.TRAIN, LearnedTimes(steps=durations([0.5] * (MIN_STEPS - 1))), 1800, "too few"),
    (Phase.EVALUATION, FAST, 1800, "an evaluation"),
    (Phase.EVALUATION, SLOW, 1000, "an evaluation"),
    (Phase.CHECKPOINT, FAST, 1800, "a checkpoint"),
    (Phase.CHECKPOINT, SLOW, 300, "a checkpoint"),
    (Phase.COLLECTIVES, SLOW, 60, "the least"),
    (
        Phase.COLLECTIVES,
        LearnedTimes(pauses=durations([0.01] * 1000 + [90.0])),
        180,
        "2 times the longest pause so far",
    ),
    (Phase.COLLECTIVES, LearnedTimes(pauses=durations([30.0] * 9)), 300, "10 times the 99th"),
    (Phase.COLLECTIVES, LearnedTimes(pauses=durations([1.0] * 2)), 1800, "too few"),
    (Phase.COLLECTIVES, LearnedTimes(), 1800, "too few"),
    (Phase.PAUSED, SLOW, math.inf, "no hang"),
]


@pytest.mark.parametrize(("phase", "learned", "seconds", "words"), TABLE)
def test_each_phase_has_a_limit_of_its_own(
    phase: Phase, learned: LearnedTimes, seconds: float, words: str
) -> None:
    """The limit follows from the phase's own past, and the reason says how."""
    found = limit(phase, learned, POLICY)
    assert seconds <= found.seconds <= seconds * GROWTH
    assert words in found.reason
    for since, hangs in ((found.seconds * 0.99, False), (found.seconds * 1.01, True)):
        reason = judge([phase], since, learned, POLICY)
        assert bool(reason) is (hangs and math.isfinite(seconds))
        assert not reason or reason.endswith(found.reason)


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ([RankSection.TRAIN, RankSection.TRAIN], {Phase.TRAIN}),
        ([RankSection.TRAIN, RankSection.CHECKPOINT], {Phase.TRAIN, Phase.CHECKPOINT}),
        ([RankSection.INIT], {Phase.FIRST_STEP}),
        ([RankSection.FINISHING], {Phase.FIRST_STEP}),
        ([RankSection.UNSPECIFIED], {Phase.COLLECTIVES}),
        ([RankSection.UNSPECIFIED, RankSection.TRAIN], {Phase.TRAIN}),
        ([], {Phase.FIRST_STEP}),
    ],
)
def test_phases_follow_from_the_sections(sections: list[RankSection], expected: set[Phase]) -> None:
    """Each section has a phase; one rank that tells its section is enough to know steps."""
    assert phases(sections, paused=False) == expected
    assert phases(sections, paused=True) == {Phase.PAUSED}


def test_every_section_has_a_phase() -> None:
    """A new section of the wire needs a limit."""
    assert all(phases([section], paused=False) for section in RankSection)


def test_while_one_rank_saves_the_others_do_not_hang() -> None:
    """The most patient phase counts."""
    found = phases([RankSection.TRAIN, RankSection.CHECKPOINT], paused=False)
    assert not judge(found, 250.0, SLOW, POLICY)
    assert judge([Phase.TRAIN], 250.0, SLOW, POLICY)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_an_impossible_duration_is_not_learned(seconds: float) -> None:
    """A torn page of a rank must not change the limit."""
    assert learn(Durations(), seconds) == Durations()


def test_without_a_duration_there_is_no_quantile() -> None:
    """0 says that nothing is known."""
    assert quantile(Durations(), 0.99) == 0.0


def test_a_new_pace_is_learned_within_some_thousand_steps() -> None:
    """The sketch forgets: the first limit does not stay for good."""
    past = durations([100.0] * 2000 + [0.1] * 20_000)
    assert past.number <= 2048
    assert quantile(past, 0.99) < 0.2


@pytest.mark.parametrize(
    ("found", "is_learned"),
    [
        ({Phase.TRAIN}, True),
        ({Phase.COLLECTIVES}, True),
        *(({Phase.TRAIN, one}, False) for one in Phase if one.name not in {"TRAIN", "COLLECTIVES"}),
    ],
)
def test_only_a_pause_within_training_is_learned(
    found: set[Phase],
    is_learned: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    """A first step, a section and an ordered pause have limits of their own."""
    learned = learn_pause(FAST, 100.0, found, POLICY, ordinary=True)
    assert learned.longest_pause == (100.0 if is_learned else 0.0)
    assert learn_pause(learned, 90.0, found, POLICY, ordinary=True) == learned
    assert learn_pause(FAST, 30.0, found, POLICY, ordinary=True) == FAST


def test_what_ended_by_itself_but_is_no_habit_counts_among_many() -> None:
    """Between collectives; where steps are known it counts nowhere."""
    learned = learn_pause(SLOW, 100.0, {Phase.COLLECTIVES}, POLICY, ordinary=False)
    assert (learned.longest_pause, learned.pauses.number) == (0.0, SLOW.pauses.number + 1)
    assert learn_pause(FAST, 100.0, {Phase.TRAIN}, POLICY, ordinary=False) == FAST


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_never_too_low_and_at_most_a_tenth_too_high(
    seconds: list[float], share: float
) -> None:
    """A bucket is 10 % wide. Beyond its ends, 0.1 ms and 11 days, the sketch is coarse."""
    exact = sorted(seconds)[math.ceil(share * len(seconds)) - 1]
    found = quantile(durations(seconds), share)
    assert found >= min(exact, 1e6)
    assert found <= max(exact, 1e-4) * GROWTH * 1.001


@given(
    found=st.sets(st.sampled_from(Phase), min_size=1),
    since=st.floats(0, 1e7),
    steps=st.lists(st.floats(0, 1e5), max_size=20),
)
def test_nothing_hangs_before_the_least_time(
    found: set[Phase], since: float, steps: list[float]
) -> None:
    """Whatever was learned, `minSeconds` passes first, and a later look never takes a hang back."""
    learned = LearnedTimes(steps=durations(steps), pauses=durations(steps))
    longest = max(limit(phase, learned, POLICY).seconds for phase in found)
    assert longest >= POLICY.min_seconds
    hangs = bool(judge(found, since, learned, POLICY))
    assert hangs is (since > longest)
    if hangs:
        assert judge(found, since + 1, learned, POLICY)
