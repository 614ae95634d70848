"""The control channel: every message arrives as it was sent, in order, and nobody ever waits."""

from __future__ import annotations

import dataclasses
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_agent.zygote import channel
from holdfast_agent.zygote.messages import (
    Command,
    Event,
    Failure,
    Mode,
    RoundDead,
    Shutdown,
    Spawn,
    SpawnRank,
    SpawnRound,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=50)
RANKS = st.builds(
    SpawnRank,
    local_rank=st.integers(0, 63),
    slot=st.integers(0, 63),
    argv=st.lists(TEXT, min_size=1).map(tuple),
    mode=st.sampled_from(Mode),
    env=st.dictionaries(TEXT, TEXT),
    stdout=st.none() | TEXT,
    numa=st.none() | TEXT,
)
SPAWNS = st.builds(
    Spawn,
    st.builds(SpawnRound, round=st.integers(0, 2**63), ranks=st.lists(RANKS).map(tuple)),
)
OTHERS = [kind for kind in typing.get_args(Command | Event) if kind is not Spawn]


@given(SPAWNS | st.sampled_from(OTHERS).flatmap(st.from_type))
def test_a_message_survives_its_encoding(message: channel.Message) -> None:
    """What is decoded equals what was encoded, for every kind of message."""
    if any(value != value for value in dataclasses.asdict(message).values()):  # noqa: PLR0124
        return  # NaN equals nothing
    assert channel.decode(channel.encode(message)) == message


def test_messages_arrive_in_order_whatever_their_size() -> None:
    """A body too long for a datagram travels beside the others, in its place."""
    left, right = channel.pair()
    sent: list[channel.Message] = [
        Failure("a" * size, size) for size in (10, 40_000, 0, 5_000_000, 1)
    ]
    for message in sent:
        left.send(message)
    assert right.receive() == sent
    left.close()
    assert right.receive() == []
    assert right.closed
    right.close()


def test_a_side_that_does_not_read_holds_nobody_up() -> None:
    """What has no room waits in order, and goes when there is room again."""
    left, right = channel.pair()
    for number in range(2000):
        left.send(RoundDead(number))
    assert left.waiting > 0
    received: list[channel.Message] = []
    while len(received) < 2000:
        received += right.receive()
        left.flush()
    assert received == [RoundDead(number) for number in range(2000)]
    left.close()
    right.close()


def test_sending_to_nobody_is_noticed() -> None:
    """A closed other end is a state, not an exception."""
    left, right = channel.pair()
    right.close()
    left.send(Shutdown())
    assert left.closed
    left.close()


def test_only_messages_can_be_encoded() -> None:
    """A value without a form is refused where it is sent."""
    with pytest.raises(TypeError, match="has no place in a message"):
        channel.encode(Failure(b"bytes"))  # type: ignore[arg-type]
