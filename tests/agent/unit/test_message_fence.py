"""Pure rules of the agent for a master's messages, its own lease, exits and reconnects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_agent.policies import liveness, master_messages, round_phases
from holdfast_agent.policies.liveness import LeaseVerdict
from holdfast_agent.policies.master_messages import Accepted, FenceVerdict, RoundOrder
from holdfast_agent.policies.round_phases import Orders
from holdfast_wire.messages import (
    CommitGrant,
    Fence,
    Leave,
    PrepareStore,
    SessionResponse,
    SetBarrier,
    StateDigest,
    StopRound,
    Welcome,
    WorldAssignment,
)

KNOWN = Accepted(epoch=3, incarnation="m", round=5)


def response(message: object, epoch: int = 3, who: str = "m", number: int = 5) -> SessionResponse:
    """A message of a master."""
    fence = Fence(epoch=epoch, incarnation=who, round=number)
    return SessionResponse(fence=fence, message=message)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("got", "verdict"),
    [
        (response(Welcome(), epoch=2), FenceVerdict.OLDER_EPOCH),
        (response(Welcome(), who="twin"), FenceVerdict.OTHER_INCARNATION),
        (response(WorldAssignment(), number=4), FenceVerdict.OLDER_ROUND),
        (response(StopRound(), number=4), FenceVerdict.OLDER_ROUND),
        (response(SetBarrier(), number=4), FenceVerdict.OLDER_ROUND),
        (response(PrepareStore(), number=0), FenceVerdict.ACCEPT),
        (response(Welcome(), epoch=4, who="next", number=0), FenceVerdict.ACCEPT),
        (SessionResponse(message=Welcome()), FenceVerdict.NO_FENCE),
    ],
)
def test_only_what_the_fence_allows_is_heard(got: SessionResponse, verdict: FenceVerdict) -> None:
    """A refused message teaches nothing, not even its epoch."""
    heard = master_messages.judge(KNOWN, got)
    assert heard.verdict is verdict
    assert (heard.accepted == KNOWN) is (heard.accepted.epoch == 3)
    if verdict is not FenceVerdict.ACCEPT:
        assert heard.accepted is KNOWN


@pytest.mark.parametrize(
    ("message", "acted_on"),
    [
        (Welcome(), True),
        (StopRound(grace_seconds=0.0), True),
        (StopRound(grace_seconds=5.0), False),
        (WorldAssignment(), False),
        (SetBarrier(), False),
        (Leave(), False),
        (CommitGrant(), True),
    ],
)
def test_an_agent_that_ends_still_stops_at_once(message: object, *, acted_on: bool) -> None:
    """The others go on without it, and nothing of the old world may train beside the new one."""
    assert master_messages.concerns_ending(message) is acted_on


@pytest.mark.parametrize(
    ("first", "opens"),
    [(Welcome(), True), (Leave(), True), (StateDigest(), False), (None, False)],
)
def test_a_stream_begins_with_a_welcome_or_a_leave(first: object, *, opens: bool) -> None:
    """Whatever else comes first is of a master that does not keep to the protocol."""
    assert master_messages.may_open(first) is opens


def test_only_an_assignment_moves_the_round() -> None:
    """A stop of a newer round is about a round that never started here."""
    assigned = master_messages.judge(KNOWN, response(WorldAssignment(), number=8))
    assert (assigned.accepted.round, assigned.round) == (8, 5)
    stopped = master_messages.judge(KNOWN, response(StopRound(), number=8))
    assert (stopped.accepted.round, stopped.round) == (5, 8)


def test_the_newer_digest_is_kept() -> None:
    """By epoch, then by sequence; equal is not newer."""
    old = StateDigest(fence=Fence(epoch=1), sequence=9)
    new = StateDigest(fence=Fence(epoch=2), sequence=1)
    assert master_messages.newer_digest(None, old)
    assert master_messages.newer_digest(old, new)
    assert not master_messages.newer_digest(new, old)
    assert not master_messages.newer_digest(new, new)


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


NOTHING = Orders(killed=False, stopped=False, lease_expired=False)
KILLED = Orders(killed=True, stopped=False, lease_expired=False)
STOPPED = Orders(killed=False, stopped=True, lease_expired=False)
EXPIRED = Orders(killed=True, stopped=False, lease_expired=True)


@pytest.mark.parametrize(
    ("code", "orders", "evidence"),
    [
        (-9, NOTHING, True),
        (0, NOTHING, True),
        (-9, KILLED, False),
        (1, KILLED, True),
        (1, STOPPED, False),
        (1, EXPIRED, False),
    ],
)
def test_what_the_agent_caused_is_no_evidence(*, code: int, orders: Orders, evidence: bool) -> None:
    """A rank that raised before its SIGKILL came is evidence; the SIGKILL is not."""
    assert round_phases.is_evidence(code, orders) is evidence


@pytest.mark.parametrize(
    ("code", "orders", "stale", "early"),
    [
        (-9, NOTHING, False, True),
        (1, NOTHING, False, True),
        (0, NOTHING, False, False),
        (-9, NOTHING, True, False),
        (1, KILLED, False, False),
        (1, STOPPED, False, False),
        (1, EXPIRED, False, False),
    ],
)
def test_only_a_failure_of_the_workers_own_is_told_before_it_is_gone(
    *, code: int, orders: Orders, stale: bool, early: bool
) -> None:
    """Everything else waits for the process's end, where more is known."""
    assert round_phases.is_early_news(code, orders, lease_is_stale=stale) is early


def test_the_master_is_told_of_ends_that_it_does_not_know() -> None:
    """Not of a round that its own assignment ended; of an expired lease always."""
    assert round_phases.tells_stopped(KILLED, next_waits=False)
    assert not round_phases.tells_stopped(KILLED, next_waits=True)
    assert round_phases.tells_stopped(EXPIRED, next_waits=True)
    assert not round_phases.tells_stopped(NOTHING, next_waits=False)
    assert [round_phases.is_shown(o) for o in (NOTHING, KILLED, STOPPED)] == [True, False, False]


def test_reconnects_slow_down_to_a_second() -> None:
    """50 ms, doubled, at most 1 s."""
    assert [liveness.reconnect_pause(n, 1.0) for n in (0, 1, 4, 5, 99)] == [
        0.05,
        0.1,
        0.8,
        1.0,
        1.0,
    ]
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


@pytest.mark.parametrize(
    ("warm", "said", "cold", "unknown"),
    [
        (False, False, "", False),
        (True, True, "", False),
        (True, False, "", True),
        (True, True, "threads", True),
    ],
)
def test_a_master_hears_that_an_agent_is_ready(
    *, warm: bool, said: bool, cold: str, unknown: bool
) -> None:
    """Also where its zygote became ready between hello and Welcome, when nothing can be sent."""
    assert master_messages.warmth_unknown(warm=warm, said=said, cold_reason=cold) is unknown


HERE = Accepted(epoch=3, incarnation="a", group=0, round=7)


def _fence(epoch: int = 3, incarnation: str = "a", round_number: int = 7) -> Fence:
    return Fence(epoch=epoch, incarnation=incarnation, round=round_number)


@pytest.mark.parametrize(
    ("got", "about_round", "verdict"),
    [
        pytest.param(None, True, FenceVerdict.NO_FENCE, id="absent"),
        pytest.param(Fence(), True, FenceVerdict.NO_FENCE, id="empty"),
        pytest.param(_fence(epoch=2), False, FenceVerdict.OLDER_EPOCH, id="older-epoch"),
        pytest.param(_fence(epoch=2, round_number=9), True, FenceVerdict.OLDER_EPOCH, id="zombie"),
        pytest.param(_fence(incarnation="b"), False, FenceVerdict.OTHER_INCARNATION, id="twin"),
        pytest.param(_fence(epoch=4, incarnation="b"), False, FenceVerdict.ACCEPT, id="successor"),
        pytest.param(_fence(round_number=6), True, FenceVerdict.OLDER_ROUND, id="older-round"),
        pytest.param(_fence(round_number=6), False, FenceVerdict.ACCEPT, id="not-about-a-round"),
        pytest.param(_fence(), True, FenceVerdict.ACCEPT, id="same-round"),
        pytest.param(_fence(round_number=8), True, FenceVerdict.ACCEPT, id="newer-round"),
    ],
)
def test_a_message_is_judged_by_its_fence(
    *, got: Fence | None, about_round: bool, verdict: FenceVerdict
) -> None:
    """Older masters, twins of the same epoch and older rounds are dropped, each by its name."""
    assert master_messages.judge_fence(HERE, got, about_round=about_round) is verdict


def test_a_first_master_is_accepted() -> None:
    """An agent that knows nothing accepts any master."""
    assert (
        master_messages.judge_fence(Accepted(), _fence(), about_round=False) is FenceVerdict.ACCEPT
    )


def test_a_report_carries_the_round_that_it_is_about() -> None:
    """Evidence about an older round is labelled with that round."""
    assert HERE.fence() == _fence()
    assert HERE.fence(6) == _fence(round_number=6)


fences = st.builds(
    Fence,
    epoch=st.integers(1, 4),
    incarnation=st.sampled_from("ab"),
    round=st.integers(0, 5),
)


@given(st.lists(st.tuples(fences, st.booleans()), max_size=20))
def test_epoch_and_round_never_go_back(stream: list[tuple[Fence, bool]]) -> None:
    """Whatever arrives in whatever order, what is accepted only grows."""
    known = Accepted()
    for got, about_round in stream:
        if (
            master_messages.judge_fence(known, got, about_round=about_round)
            is not FenceVerdict.ACCEPT
        ):
            continue
        after = master_messages.accept_fence(known, got, about_round=about_round)
        assert (after.epoch, after.round) >= (known.epoch, known.round)
        known = after


@pytest.mark.parametrize(
    ("own", "new", "asked", "order", "why"),
    [
        pytest.param(0, 1, 2, RoundOrder.START, "replaces 0", id="first"),
        pytest.param(4, 5, 2, RoundOrder.START, "replaces 4", id="newer"),
        pytest.param(4, 9, 2, RoundOrder.START, "replaces 4", id="rounds-were-missed"),
        pytest.param(4, 4, 2, RoundOrder.KEEP, "before", id="repeated"),
        pytest.param(4, 3, 2, RoundOrder.KEEP, "older", id="older"),
        pytest.param(4, 5, 3, RoundOrder.KEEP, "asks for 3", id="another-size"),
    ],
)
def test_an_assignment_starts_only_a_newer_round_of_this_size(
    own: int, new: int, asked: int, order: RoundOrder, why: str
) -> None:
    """Repeats and older rounds change nothing, nor does a world of a size that is not here."""
    verdict = master_messages.on_assignment(own, new, asked, 2)
    assert verdict.order is order
    assert why in verdict.reason


@pytest.mark.parametrize(
    ("own", "master", "alive", "order"),
    [
        pytest.param(5, 5, True, RoundOrder.KEEP, id="known"),
        pytest.param(5, 6, True, RoundOrder.KILL, id="master-is-ahead"),
        pytest.param(5, 4, True, RoundOrder.KILL, id="master-is-behind"),
        pytest.param(5, 0, True, RoundOrder.KILL, id="master-knows-none"),
        pytest.param(5, 6, False, RoundOrder.KEEP, id="nothing-runs"),
        pytest.param(0, 0, False, RoundOrder.KEEP, id="new-agent"),
    ],
)
def test_only_the_round_that_the_master_knows_may_live_on(
    *, own: int, master: int, alive: bool, order: RoundOrder
) -> None:
    """After a reconnect workers of any other round are killed."""
    assert master_messages.on_welcome(own, master, alive=alive).order is order


@pytest.mark.parametrize(
    ("own", "stopped", "alive", "order"),
    [
        pytest.param(5, 5, True, RoundOrder.KILL, id="this-round"),
        pytest.param(5, 0, True, RoundOrder.KILL, id="whatever-runs"),
        pytest.param(5, 6, True, RoundOrder.KEEP, id="another-round"),
        pytest.param(5, 5, False, RoundOrder.KEEP, id="nothing-runs"),
    ],
)
def test_a_stop_is_about_one_round(
    *, own: int, stopped: int, alive: bool, order: RoundOrder
) -> None:
    """A stop ends the round that it names, or whatever runs where it names none."""
    assert master_messages.on_stop(own, stopped, alive=alive).order is order
