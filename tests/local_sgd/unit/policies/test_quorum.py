"""Quorum of a round without a barrier: one decision at a time."""

from __future__ import annotations

import math

import pytest

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies.quorum import Lags, carry, close, learn, needed, window
from holdfast.local_sgd.policies.weights import Report, weigh

HALF = LocalSGDConfig(quorum=0.5, grace_min_seconds=1.0, grace_max_seconds=10.0)
ALL = LocalSGDConfig()
FOUR = {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("live", "share", "least"),
    [(4, 0.5, 2), (5, 0.5, 3), (1, 0.5, 1), (30, 0.1, 3), (3, 1.0, 3), (0, 0.5, 1)],
)
def test_the_quorum_is_a_share_of_the_live(live: int, share: float, least: int) -> None:
    """Rounded up, and never 0."""
    assert needed(live, LocalSGDConfig(quorum=share)) == least


def test_a_round_waits_for_its_quorum() -> None:
    """Without it no time closes the round."""
    decision = close(1e9, {0: 5.0}, FOUR, Lags(), HALF)
    assert not decision.closes
    assert decision.wait_until is None
    assert decision.reason == "1 of 4 live replicas have arrived, 2 are needed"


def test_the_window_opens_with_the_quorum() -> None:
    """It is counted from the arrival that completed the quorum, not from the first or last."""
    decision = close(7.0, {0: 5.0, 2: 6.0, 1: 6.5}, FOUR, Lags(), HALF)
    assert (decision.closes, decision.wait_until, decision.quorum_at) == (False, 16.0, 6.0)


def test_a_round_closes_when_the_window_ends() -> None:
    """With those who are there; the fourth is late."""
    decision = close(16.0, {2: 6.0, 0: 5.0, 1: 15.9}, FOUR, Lags(), HALF)
    assert decision.closes
    assert decision.replicas == (0, 1, 2)
    assert decision.reason == (
        "3 of 4 live replicas have arrived, 2 are the quorum; the window of 10 s is over"
    )


def test_a_round_closes_at_once_when_all_are_there() -> None:
    """Nobody is left to wait for."""
    decision = close(6.6, {0: 5.0, 2: 6.0, 1: 6.5, 3: 6.6}, FOUR, Lags(), HALF)
    assert (decision.closes, decision.replicas) == (True, (0, 1, 2, 3))


def test_the_dead_are_not_waited_for() -> None:
    """The death of the last one who is missing closes the round."""
    arrived = {0: 5.0, 2: 6.0, 1: 6.5}
    assert not close(7.0, arrived, FOUR, Lags(), HALF).closes
    decision = close(7.0, arrived, {0, 1, 2}, Lags(), HALF)
    assert (decision.closes, decision.replicas) == (True, (0, 1, 2))


def test_the_dead_are_in_no_round_and_make_no_quorum() -> None:
    """Who arrived and died then does not count."""
    arrived = {0: 5.0, 1: 5.5}
    assert not close(1e9, arrived, {0, 2, 3}, Lags(), HALF).closes
    decision = close(1e9, arrived | {2: 8.0}, {0, 2, 3}, Lags(), HALF)
    assert (decision.replicas, decision.quorum_at) == ((0, 2), 8.0)


def test_without_a_quorum_a_round_waits_for_all_the_live() -> None:
    """This is the barrier, without the dead."""
    assert not close(1e9, {0: 5.0, 1: 5.0, 2: 5.0}, FOUR, Lags(), ALL).closes
    assert close(5.0, {0: 5.0, 1: 5.0, 2: 5.0}, {0, 1, 2}, Lags(), ALL).replicas == (0, 1, 2)


def test_nobody_live_closes_nothing() -> None:
    """A round without replicas is no round."""
    assert not close(1e9, {0: 5.0}, set(), Lags(), HALF).closes


def test_the_window_is_learned_within_its_bounds() -> None:
    """Mean + 2σ of the lags; before any lag the upper bound."""
    assert window(Lags(), HALF) == 10
    assert window(Lags(3.0, 1.0, 5), HALF) == 5
    assert window(Lags(0.1, 0.0, 5), HALF) == 1
    assert window(Lags(9.0, 4.0, 5), HALF) == 10


def test_lags_are_learned_as_a_moving_mean() -> None:
    """Three times a round's median counts, and follows the nodes within some ten rounds."""
    lags = learn(Lags(), [0.5, 2.0, 1.0], HALF)
    assert lags == Lags(3.0, 0.0, 1)
    lags = learn(lags, [4.0 / 3], HALF)
    assert lags.mean == pytest.approx(3.1)
    assert lags.variance == pytest.approx(0.09)
    for _ in range(60):
        lags = learn(lags, [2.0], HALF)
    assert lags.mean == pytest.approx(6, abs=0.02)


def test_slow_replicas_do_not_make_the_window_longer() -> None:
    """As long as they are fewer than half of those that come after the quorum."""
    assert learn(Lags(), [0.3, 0.4, 9.0, 9.5], HALF) == learn(Lags(), [0.3, 0.4, 0.5, 0.6], HALF)


def test_a_lag_that_no_window_could_catch_is_not_learned() -> None:
    """One replica that is ten times slower does not make each round wait longer for nothing."""
    lags = learn(Lags(), [1.0], HALF)
    assert learn(lags, [10.1, math.inf], HALF) == lags
    assert learn(lags, [], HALF) == lags


def test_a_window_that_is_too_short_sees_it_from_the_late() -> None:
    """Replicas that have become slower are waited for again after some rounds."""
    lags = Lags(1.0, 0.0, 50)
    for _ in range(20):
        lags = learn(lags, [2.5, 2.6, 2.7], HALF)
    assert window(lags, HALF) > 2.7


def test_a_late_delta_is_discounted_by_the_rounds_that_it_missed() -> None:
    """Its steps or tokens are discounted alike, so its weight is."""
    assert carry(100.0, 1, HALF).factor == 0.5
    twice = carry(100.0, 2, HALF)
    assert (twice.factor, twice.steps) == (0.25, 25.0)
    assert twice.reason == "late by 2 rounds: carried into the next one by 0.25"


def test_a_late_delta_enters_the_next_round_with_its_weight() -> None:
    """100 late tokens by a half and 50 new ones weigh as 100 tokens in time."""
    tokens = LocalSGDConfig(quorum=0.5, use_step_weight=True, step_weight_by="tokens")
    late = Report(1.0, steps=carry(100.0, 1, tokens).steps + 50.0)
    assert weigh([late, Report(1.0, steps=100.0)], tokens).weights == (0.5, 0.5)


def test_a_discount_of_0_throws_late_deltas_away() -> None:
    """The replica takes the anchor."""
    strict = LocalSGDConfig(quorum=0.5, late_discount=0.0)
    assert (carry(100.0, 1, strict).factor, carry(100.0, 1, strict).steps) == (0.0, 0.0)


def test_a_delta_of_the_open_round_is_not_late() -> None:
    """A discount would be wrong there."""
    with pytest.raises(ValueError, match="missed=0"):
        carry(100.0, 0, HALF)
