"""Rules of the agent for a master's messages: which it hears, and what they have it do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_agent.policies import master_messages
from holdfast_agent.policies.master_messages import JudgedMessage
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

KNOWN = Fence(epoch=3, incarnation="m", round=5)


def _fence(epoch: int = 3, who: str = "m", number: int = 5) -> Fence:
    return Fence(epoch=epoch, incarnation=who, round=number)


def _judged(message: Any, fence: Fence | None) -> JudgedMessage:
    return master_messages.judge(KNOWN, SessionResponse(fence=fence, message=message))


@pytest.mark.parametrize(
    ("message", "fence", "refused"),
    [
        pytest.param(Welcome(), None, "no fence", id="absent"),
        pytest.param(Welcome(), Fence(), "no fence", id="empty"),
        pytest.param(Welcome(), _fence(2), "older master", id="older-epoch"),
        pytest.param(SetBarrier(), _fence(2, number=9), "older master", id="zombie"),
        pytest.param(Welcome(), _fence(who="twin"), "same epoch", id="twin"),
        pytest.param(Welcome(), _fence(4, "next", 0), "", id="successor"),
        pytest.param(WorldAssignment(), _fence(number=4), "older round", id="assigned"),
        pytest.param(StopRound(), _fence(number=4), "older round", id="stopped"),
        pytest.param(SetBarrier(), _fence(number=4), "older round", id="barrier"),
        pytest.param(PrepareStore(), _fence(number=0), "", id="about-no-round"),
        pytest.param(SetBarrier(), _fence(), "", id="same-round"),
        pytest.param(SetBarrier(), _fence(number=6), "", id="newer-round"),
    ],
)
def test_only_what_the_fence_allows_is_heard(
    message: object, fence: Fence | None, refused: str
) -> None:
    """A refused message teaches nothing, not even its epoch."""
    heard = _judged(message, fence)
    assert refused in heard.refused
    assert bool(heard.refused) is bool(refused)
    assert (heard.accepted == KNOWN) is (heard.accepted.epoch == 3)
    if refused:
        assert heard.accepted is KNOWN


@given(
    st.lists(
        st.builds(
            SessionResponse,
            fence=st.builds(_fence, st.integers(1, 4), st.sampled_from("ab"), st.integers(0, 5)),
            message=st.sampled_from((Welcome(), WorldAssignment())),
        ),
        max_size=20,
    )
)
def test_epoch_and_round_never_go_back(stream: list[SessionResponse]) -> None:
    """Whatever arrives in whatever order, from the first master on what is accepted only grows."""
    known = Fence()
    for number, got in enumerate(stream):
        heard = master_messages.judge(known, got)
        assert number or not heard.refused
        assert heard.accepted.epoch >= known.epoch
        assert heard.accepted.round >= known.round
        known = heard.accepted


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
    ("first", "opens"), [(Welcome(), True), (Leave(), True), (StateDigest(), False), (None, False)]
)
def test_a_stream_begins_with_a_welcome_or_a_leave(first: object, *, opens: bool) -> None:
    """Whatever else comes first is of a master that does not keep to the protocol."""
    assert master_messages.may_open(first) is opens


def test_only_an_assignment_moves_the_round() -> None:
    """A stop of a newer round is about a round that never started here."""
    assigned = _judged(WorldAssignment(), _fence(number=8))
    assert (assigned.accepted.round, assigned.round) == (8, 5)
    stopped = _judged(StopRound(), _fence(number=8))
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


@pytest.mark.parametrize(
    ("own", "new", "asked", "why"),
    [
        pytest.param(0, 1, 2, "", id="first"),
        pytest.param(4, 5, 2, "", id="newer"),
        pytest.param(4, 9, 2, "", id="rounds-were-missed"),
        pytest.param(4, 4, 2, "round 4 was assigned before", id="repeated"),
        pytest.param(4, 3, 2, "round 3 is older than 4", id="older"),
        pytest.param(
            4, 5, 3, "the assignment asks for 3 processes, this node said 2", id="another-size"
        ),
    ],
)
def test_an_assignment_starts_only_a_newer_round_of_this_size(
    own: int, new: int, asked: int, why: str
) -> None:
    """Repeats and older rounds change nothing, nor does a world of a size that is not here."""
    assert master_messages.why_not_started(own, new, asked, 2) == why


@pytest.mark.parametrize(
    ("own", "master", "alive", "why"),
    [
        pytest.param(5, 5, True, "", id="known"),
        pytest.param(5, 6, True, "round 5 runs here, the master knows 6", id="master-is-ahead"),
        pytest.param(5, 4, True, "round 5 runs here, the master knows 4", id="master-is-behind"),
        pytest.param(5, 0, True, "round 5 runs here, the master knows none", id="master-new"),
        pytest.param(5, 6, False, "", id="nothing-runs"),
        pytest.param(0, 0, False, "", id="new-agent"),
    ],
)
def test_only_the_round_that_the_master_knows_may_live_on(
    *, own: int, master: int, alive: bool, why: str
) -> None:
    """After a reconnect workers of any other round are killed."""
    assert master_messages.why_killed(own, master, alive=alive) == why


@pytest.mark.parametrize(
    ("own", "stopped", "alive", "why"),
    [
        pytest.param(5, 5, True, "", id="this-round"),
        pytest.param(5, 0, True, "", id="whatever-runs"),
        pytest.param(5, 6, True, "round 5 runs here, not 6", id="another-round"),
        pytest.param(5, 5, False, "nothing runs here", id="nothing-runs"),
    ],
)
def test_a_stop_is_about_one_round(*, own: int, stopped: int, alive: bool, why: str) -> None:
    """A stop ends the round that it names, or whatever runs where it names none."""
    assert master_messages.why_not_stopped(own, stopped, alive=alive) == why
