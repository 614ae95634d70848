"""The rule for a zygote that has ended: another one, after a pause, or the end of the agent."""

from __future__ import annotations

import pytest

from holdfast_agent.policies.zygote_restarts import (
    LONGEST_PAUSE_SECONDS,
    MAX_FAILED_STARTS,
    SETTLED_SECONDS,
    ZygoteHistory,
    judge,
)


def _after(*ready_seconds: float | None) -> ZygoteHistory:
    history = ZygoteHistory()
    for seconds in ready_seconds:
        history = history.ended(seconds)
    return history


def test_one_that_was_never_ready_ends_the_agent_at_once() -> None:
    """A zygote that was never ready is not restarted. It would import the same at every try."""
    verdict = judge(_after(None))
    assert not verdict.restart
    assert verdict.reason == "it ended before it was ready"


@pytest.mark.parametrize("tries", range(1, MAX_FAILED_STARTS + 2))
def test_later_ones_may_fail_to_start_a_few_times(tries: int) -> None:
    """Memory may be short for a moment; three in a row are no accident."""
    verdict = judge(_after(100.0, *[None] * tries))
    assert verdict.restart is (tries < MAX_FAILED_STARTS)
    assert verdict.restart or verdict.reason == f"{tries} in a row ended before they were ready"


def test_one_that_was_ready_begins_the_count_of_failed_starts_anew() -> None:
    """In a row means without a success between."""
    assert judge(_after(1.0, None, None, 1.0, None, None)).restart


def test_pauses_grow_while_ends_follow_each_other() -> None:
    """The first end costs no pause; ends of ready zygotes are never too many."""
    pauses = [judge(_after(*[1.0] * ends)).pause_seconds for ends in range(1, 9)]
    assert pauses == [0, 1, 2, 4, 8, 16, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]
    assert judge(_after(*[1.0] * 10_000)).pause_seconds == LONGEST_PAUSE_SECONDS


def test_one_that_worked_for_long_is_followed_at_once() -> None:
    """Its end has nothing to do with those before."""
    assert judge(_after(*[1.0] * 5, SETTLED_SECONDS)).pause_seconds == 0
    assert judge(_after(*[1.0] * 5, SETTLED_SECONDS, 1.0)).pause_seconds == 0
