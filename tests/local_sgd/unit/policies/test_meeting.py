"""Meeting of replicas in rounds without a barrier: one decision at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies.meeting import (
    Arrived,
    Closed,
    arrival,
    arrivals,
    calls,
    is_whole,
    propose,
    quorum_at,
)
from holdfast.local_sgd.policies.quorum import Lags
from holdfast.local_sgd.policies.schedule import Entry, Progress, Turn

HALF = LocalSGDConfig(
    use_async=True,
    quorum=0.5,
    local_sgd_sync_time=10.0,
    min_total_global_steps=8,
    grace_max_seconds=3.0,
)
FOUR = frozenset(range(4))
LEARNED = Lags(0.5, 0.0, 5)
BEFORE = Closed(Entry.SKIP, 2, (), LEARNED, 1)


def there(*times: float, steps: int = 4, exhausted: bool = False) -> dict[int, Arrived]:
    """Return replicas 0, 1, … that have arrived at these times."""
    return {one: Arrived(at, Progress(steps, exhausted)) for one, at in enumerate(times)}


def test_a_meeting_without_its_quorum_stays_open() -> None:
    """One of four has come, and two are the quorum."""
    told = propose(99.0, there(1.0), FOUR, BEFORE, HALF)
    assert told.closed is None
    assert told.reason == "1 of 4 live replicas have arrived, 2 are needed"


@pytest.mark.parametrize(("now", "closes"), [(2.4, False), (2.6, True)])
def test_the_learned_window_closes_it(now: float, *, closes: bool) -> None:
    """The quorum was there at 2 s, and the window is 0.5 s."""
    told = propose(now, there(1.0, 2.0), FOUR, BEFORE, HALF)
    assert (told.closed is not None) == closes
    if told.closed is not None:
        both = (0, 1)
        made = replace(BEFORE, entry=Entry.ROUND, rounds=3, replicas=both, holders=both)
        assert told.closed == made


@pytest.mark.parametrize(
    ("rounds", "interval", "whole"),
    [(6, 8, False), (7, 8, True), (8, 8, False), (15, 8, True), (7, 0, False), (0, 1, True)],
)
def test_each_so_many_th_round_is_whole(rounds: int, interval: int, *, whole: bool) -> None:
    """Counted with the round that is to be made."""
    assert is_whole(rounds, replace(HALF, whole_round_interval=interval)) == whole


def test_a_whole_round_has_the_longest_window() -> None:
    """Whatever was learned: 3 s in place of 0.5 s."""
    before = replace(BEFORE, rounds=7)
    assert propose(4.9, there(1.0, 2.0), FOUR, before, HALF).closed is None
    assert propose(5.1, there(1.0, 2.0), FOUR, before, HALF).closed is not None


def test_too_few_steps_of_those_who_met_are_no_round() -> None:
    """The rounds are as many as before, and all go on with their steps."""
    told = propose(3.0, there(1.0, 2.0, steps=3), FOUR, BEFORE, HALF)
    assert told.closed is not None
    assert (told.closed.entry, told.closed.rounds) == (Entry.SKIP, 2)
    assert "6 steps of all replicas since the last round, 8 are the least" in told.reason


def test_the_last_round_waits_for_all() -> None:
    """Replicas without data do not end the training of one that has some, or that they miss."""
    three = there(1.0, 2.0, 3.0, exhausted=True)
    assert propose(99.0, three, FOUR, BEFORE, HALF).closed is None
    told = propose(99.0, there(1.0, 2.0, 3.0, 98.0, exhausted=True), FOUR, BEFORE, HALF)
    assert told.closed is not None
    assert told.closed.entry is Entry.LAST


def test_replicas_without_data_make_a_round_with_one_that_has_some() -> None:
    """They take its result; the round is not the last."""
    seen = {**there(1.0, 2.0, exhausted=True), 3: Arrived(2.0, Progress(8))}
    told = propose(99.0, seen, FOUR, BEFORE, HALF)
    assert told.closed is not None
    assert (told.closed.entry, told.closed.replicas) == (Entry.ROUND, (0, 1, 3))


def test_a_dead_replica_is_in_no_round() -> None:
    """It had arrived, and is not live any more: neither quorum nor list have it."""
    told = propose(99.0, there(1.0, 2.0, 3.0), frozenset({1, 2}), BEFORE, HALF)
    assert told.closed is not None
    assert told.closed.replicas == (1, 2)


@pytest.mark.parametrize(
    ("elapsed", "step", "called"),
    [
        (10.0, 0.1, True),  # its time is up
        (9.9, 0.1, False),  # the next step ends at 10.0, inside the window
        (9.9, 0.7, True),  # the next one would end at 10.6, behind the window
        (6.0, 4.0, False),
        (6.0, 5.0, True),  # a slow replica calls five steps of a fast one before
        (4.9, 50.0, False),  # but not in the first half of the time
        (5.1, 50.0, True),
    ],
)
def test_a_replica_calls_before_a_step_that_would_make_it_late(
    elapsed: float, step: float, *, called: bool
) -> None:
    """τ is 10 s and the learned window 0.5 s."""
    turn = Turn(round=0, started=100.0)
    assert calls(turn, 100.0 + elapsed, step, LEARNED, HALF) == called


def test_a_window_that_was_not_learned_lets_nobody_wait_to_call() -> None:
    """Before any lag it is the upper bound, which is no reason to rely on."""
    turn = Turn(round=0, started=0.0)
    assert calls(turn, 9.0, 1.5, Lags(), HALF)
    assert not calls(turn, 9.0, 1.5, Lags(2.0, 0.0, 1), HALF)


def test_the_text_of_a_decision_keeps_every_bit() -> None:
    """All replicas go on with the same lags."""
    closed = Closed(Entry.ROUND, 7, (0, 2, 11), Lags(0.1 + 0.2, 1e-17, 3), 2)
    assert Closed.from_text(closed.to_text()) == closed


def test_the_first_arrival_of_a_replica_counts() -> None:
    """Lines come in the order of arrival; one who is late and comes again says so twice."""
    text = arrival(3, Progress(5)) + arrival(0, Progress(1, exhausted=True))
    found = arrivals(text + arrival(3, Progress(9)))
    assert list(found.items()) == [(3, Progress(5)), (0, Progress(1, exhausted=True))]


def test_the_quorum_was_there_with_the_arrival_that_completed_it() -> None:
    """Two of four: the second one by time, whatever its number."""
    assert quorum_at(there(5.0, 1.0, 9.0), 4, HALF) == 5.0
