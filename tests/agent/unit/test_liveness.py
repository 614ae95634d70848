"""Leases, reconnects, workers of an agent that has no master, and what follows a zygote's end."""

from __future__ import annotations

import pytest

from holdfast_agent.policies import liveness
from holdfast_agent.policies.liveness import (
    LONGEST_PAUSE_SECONDS,
    MAX_FAILED_STARTS,
    SETTLED_SECONDS,
    ZygoteHistory,
)
from holdfast_wire.messages import Fence, GetRoundResponse, SetBarrier


@pytest.mark.parametrize(("age", "over"), [(3, False), (4, False), (5, True)])
def test_a_lease_that_ran_out_is_not_renewed(*, age: int, over: bool) -> None:
    """Not before the workers are known to be dead."""
    assert liveness.lease_ran_out(age_ns=age, limit_ns=4) is over


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


OWN = Fence(epoch=2, incarnation="x", round=5)


def _answer(epoch: int, round_number: int) -> GetRoundResponse:
    return GetRoundResponse(fence=Fence(epoch=epoch, incarnation="x", round=round_number))


@pytest.mark.parametrize(
    ("silent", "answers", "why"),
    [
        pytest.param(1.0, [], "", id="no-answers"),
        pytest.param(1.0, [_answer(2, 5)], "", id="same-round"),
        pytest.param(1.0, [_answer(2, 4)], "", id="older-round"),
        pytest.param(
            1.0, [_answer(2, 6)], "a peer is in round 6, this node in 5", id="newer-round"
        ),
        pytest.param(
            1.0, [_answer(3, 6)], "a peer is in round 6, this node in 5", id="newer-master"
        ),
        pytest.param(1.0, [_answer(1, 6)], "", id="an-older-master's-round"),
        pytest.param(
            1.0,
            [_answer(2, 5), _answer(2, 7)],
            "a peer is in round 7, this node in 5",
            id="one-of-two",
        ),
        pytest.param(1.0, [GetRoundResponse()], "", id="no-fence"),
        pytest.param(600.0, [], "no master for 600 s, the limit is 600 s", id="limit"),
        pytest.param(599.9, [_answer(2, 5)], "", id="just-below"),
    ],
)
def test_workers_without_a_master_train_on_until_a_peer_or_the_limit_says_no(
    silent: float, answers: list[GetRoundResponse], why: str
) -> None:
    """Only a newer round among the peers, or the declared limit, kills the workers."""
    found = liveness.why_masterless_end(
        silent_seconds=silent, limit_seconds=600.0, accepted=OWN, answers=answers
    )
    assert found == why
    assert liveness.peers_barrier(OWN, answers) is None


def test_a_stop_that_reached_a_peer_is_meant_for_all() -> None:
    """The newest barrier of this round counts; those of other rounds and older masters do not."""

    def said(epoch: int, round_number: int, barrier_id: int) -> GetRoundResponse:
        fence = Fence(epoch=epoch, incarnation="x", round=round_number)
        return GetRoundResponse(
            fence=fence, barrier=SetBarrier(barrier_id=barrier_id, step=10 * barrier_id)
        )

    answers = [said(2, 5, 3), said(2, 5, 4), said(2, 4, 9), said(1, 5, 8), _answer(2, 5)]
    assert liveness.peers_barrier(OWN, answers) == SetBarrier(barrier_id=4, step=40)


def _after(*ready_seconds: float | None) -> ZygoteHistory:
    history = ZygoteHistory()
    for seconds in ready_seconds:
        history = history.ended(seconds)
    return history


def test_one_that_was_never_ready_ends_the_agent_at_once() -> None:
    """A zygote that was never ready is not restarted. It would import the same at every try."""
    assert _after(None).given_up == "it ended before it was ready"


@pytest.mark.parametrize("tries", range(1, MAX_FAILED_STARTS + 2))
def test_later_ones_may_fail_to_start_a_few_times(tries: int) -> None:
    """Memory may be short for a moment; three in a row are no accident."""
    text = f"{tries} in a row ended before they were ready"
    assert _after(100.0, *[None] * tries).given_up == (text if tries >= MAX_FAILED_STARTS else "")


def test_one_that_was_ready_begins_the_count_of_failed_starts_anew() -> None:
    """In a row means without a success between."""
    assert not _after(1.0, None, None, 1.0, None, None).given_up


def test_pauses_grow_while_ends_follow_each_other() -> None:
    """The first end costs no pause; ends of ready zygotes are never too many."""
    pauses = [_after(*[1.0] * ends).pause_seconds for ends in range(1, 9)]
    assert pauses == [0, 1, 2, 4, 8, 16, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]
    assert _after(*[1.0] * 10_000).pause_seconds == LONGEST_PAUSE_SECONDS


def test_one_that_worked_for_long_is_followed_at_once() -> None:
    """Its end has nothing to do with those before."""
    assert _after(*[1.0] * 5, SETTLED_SECONDS).pause_seconds == 0
    assert _after(*[1.0] * 5, SETTLED_SECONDS, 1.0).pause_seconds == 0
