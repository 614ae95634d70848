"""Leases, reconnects, workers of an agent that has no master, and what follows a zygote's end."""

from __future__ import annotations

import pytest

from holdfast_agent.policies import liveness
from holdfast_agent.policies.liveness import (
    LONGEST_PAUSE_SECONDS,
    MAX_FAILED_STARTS,
    SETTLED_SECONDS,
    LeaseVerdict,
    ZygoteHistory,
    judge_restart,
)
from holdfast_wire.messages import Fence, GetRoundResponse, SetBarrier


@pytest.mark.parametrize(
    ("held", "age", "verdict"),
    [
        (True, 4, LeaseVerdict.RENEW),
        (True, 5, LeaseVerdict.EXPIRED),
        (False, 1, LeaseVerdict.WITHHOLD),
        (False, 9, LeaseVerdict.WITHHOLD),
    ],
)
def test_a_lease_that_ran_out_is_not_renewed(
    *, held: bool, age: int, verdict: LeaseVerdict
) -> None:
    """Not before the workers are known to be dead."""
    assert liveness.judge_lease(held=held, age_ns=age, limit_ns=4) is verdict


def test_reconnects_slow_down_to_a_second() -> None:
    """50 ms, doubled, at most 1 s."""
    pauses = [liveness.reconnect_pause(n, 1.0) for n in (0, 1, 4, 5, 99)]
    assert pauses == [0.05, 0.1, 0.8, 1.0, 1.0]
    assert liveness.reconnect_pause(0, 0.0) == 0.025


def test_a_crowd_without_a_master_comes_back_at_the_rate_it_can_take() -> None:
    """A refusal meets everybody; an agent whose own stream broke dials again soon."""
    assert liveness.reconnect_pause(1, 0.5, refused=True, crowd=10_000) == 20.0
    assert liveness.reconnect_pause(1, 0.0, refused=True, crowd=10_000) == 0.0
    assert liveness.reconnect_pause(1, 0.5, refused=False, crowd=10_000) < 0.1
    assert liveness.reconnect_pause(1, 0.5, refused=True, crowd=250) < 0.1
    assert liveness.connect_deadline(10_000) == 80.0, "no attempt is given up while others wait"
    assert liveness.welcome_deadline(10_000) == 40.0


def test_an_attempt_that_leads_nowhere_is_soon_followed_by_another() -> None:
    """A master's successor has another address; one that is slow gets its time all the same."""
    deadlines = [liveness.connect_deadline(1, attempt) for attempt in (0, 1, 2, 3, 4, 99)]
    assert deadlines == [1.5, 1.5, 3.0, 6.0, 10.0, 10.0]


def _answer(epoch: int, round_number: int) -> GetRoundResponse:
    return GetRoundResponse(fence=Fence(epoch=epoch, incarnation="x", round=round_number))


@pytest.mark.parametrize(
    ("silent", "answers", "kill", "why"),
    [
        pytest.param(1.0, [], False, "no peer", id="no-answers"),
        pytest.param(1.0, [_answer(2, 5)], False, "no peer", id="same-round"),
        pytest.param(1.0, [_answer(2, 4)], False, "no peer", id="older-round"),
        pytest.param(1.0, [_answer(2, 6)], True, "round 6", id="newer-round"),
        pytest.param(1.0, [_answer(3, 6)], True, "round 6", id="newer-master"),
        pytest.param(1.0, [_answer(1, 6)], False, "no peer", id="an-older-master's-round"),
        pytest.param(1.0, [_answer(2, 5), _answer(2, 7)], True, "round 7", id="one-of-two"),
        pytest.param(1.0, [GetRoundResponse()], False, "no peer", id="no-fence"),
        pytest.param(600.0, [], True, "limit", id="limit"),
        pytest.param(599.9, [_answer(2, 5)], False, "no peer", id="just-below"),
    ],
)
def test_workers_without_a_master_train_on_until_a_peer_or_the_limit_says_no(
    *, silent: float, answers: list[GetRoundResponse], kill: bool, why: str
) -> None:
    """Only a newer round among the peers, or the declared limit, kills the workers."""
    verdict = liveness.judge_masterless(
        silent_seconds=silent, limit_seconds=600.0, epoch=2, own_round=5, answers=answers
    )
    assert verdict.kill is kill
    assert why in verdict.reason
    assert verdict.barrier is None


def test_a_stop_that_reached_a_peer_is_meant_for_all() -> None:
    """The newest barrier of this round counts; those of other rounds and older masters do not."""

    def said(epoch: int, round_number: int, barrier_id: int) -> GetRoundResponse:
        fence = Fence(epoch=epoch, incarnation="x", round=round_number)
        return GetRoundResponse(
            fence=fence, barrier=SetBarrier(barrier_id=barrier_id, step=10 * barrier_id)
        )

    answers = [said(2, 5, 3), said(2, 5, 4), said(2, 4, 9), said(1, 5, 8), _answer(2, 5)]
    verdict = liveness.judge_masterless(
        silent_seconds=0.0, limit_seconds=600.0, epoch=2, own_round=5, answers=answers
    )
    assert not verdict.kill
    assert verdict.barrier == SetBarrier(barrier_id=4, step=40)


def _after(*ready_seconds: float | None) -> ZygoteHistory:
    history = ZygoteHistory()
    for seconds in ready_seconds:
        history = history.ended(seconds)
    return history


def test_one_that_was_never_ready_ends_the_agent_at_once() -> None:
    """A zygote that was never ready is not restarted. It would import the same at every try."""
    verdict = judge_restart(_after(None))
    assert not verdict.restart
    assert verdict.reason == "it ended before it was ready"


@pytest.mark.parametrize("tries", range(1, MAX_FAILED_STARTS + 2))
def test_later_ones_may_fail_to_start_a_few_times(tries: int) -> None:
    """Memory may be short for a moment; three in a row are no accident."""
    verdict = judge_restart(_after(100.0, *[None] * tries))
    assert verdict.restart is (tries < MAX_FAILED_STARTS)
    assert verdict.restart or verdict.reason == f"{tries} in a row ended before they were ready"


def test_one_that_was_ready_begins_the_count_of_failed_starts_anew() -> None:
    """In a row means without a success between."""
    assert judge_restart(_after(1.0, None, None, 1.0, None, None)).restart


def test_pauses_grow_while_ends_follow_each_other() -> None:
    """The first end costs no pause; ends of ready zygotes are never too many."""
    pauses = [judge_restart(_after(*[1.0] * ends)).pause_seconds for ends in range(1, 9)]
    assert pauses == [0, 1, 2, 4, 8, 16, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]
    assert judge_restart(_after(*[1.0] * 10_000)).pause_seconds == LONGEST_PAUSE_SECONDS


def test_one_that_worked_for_long_is_followed_at_once() -> None:
    """Its end has nothing to do with those before."""
    assert judge_restart(_after(*[1.0] * 5, SETTLED_SECONDS)).pause_seconds == 0
    assert judge_restart(_after(*[1.0] * 5, SETTLED_SECONDS, 1.0)).pause_seconds == 0
