"""The control channel: every message arrives as it was sent, in order, and nobody ever waits."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_agent.zygote import protocol
from holdfast_agent.zygote.protocol import (
    Command,
    EndZygote,
    Event,
    Failure,
    RoundDead,
    ScriptMode,
    Spawn,
    SpawnRank,
    WorkerExitedEvent,
)
from holdfast_wire.datagrams import DatagramError, encode

TEXT = st.text(st.characters(codec="utf-8"), max_size=50)
RANKS = st.builds(
    SpawnRank,
    local_rank=st.integers(0, 63),
    slot=st.integers(0, 63),
    argv=st.lists(TEXT, min_size=1).map(tuple),
    mode=st.sampled_from(ScriptMode),
    env=st.dictionaries(TEXT, TEXT),
    stdout=st.none() | TEXT,
    numa=st.none() | TEXT,
)
SPAWNS = st.builds(Spawn, round=st.integers(0, 2**63), ranks=st.lists(RANKS).map(tuple))
OTHERS = [kind for kind in typing.get_args(Command | Event) if kind is not Spawn]


@given(SPAWNS | st.sampled_from(OTHERS).flatmap(st.from_type))
def test_a_message_survives_its_encoding(message: protocol.Message) -> None:
    """A message of any kind equals itself after encoding and decoding."""
    if any(value != value for value in dataclasses.asdict(message).values()):  # noqa: PLR0124
        return  # NaN equals nothing
    assert protocol.decode(encode(message)) == message


def test_a_name_that_is_no_message_is_refused() -> None:
    """Only a class of the table is made, not whatever bears that name in the module."""
    with pytest.raises(DatagramError, match="Channel"):
        protocol.decode(b'{"kind": "Channel", "sock": 1}')


Pair = tuple[protocol.Channel, protocol.Channel]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two connected channels."""
    left, right = protocol.pair()
    with closing(left), closing(right):
        yield left, right


def test_messages_arrive_in_order_whatever_their_size(pair: Pair) -> None:
    """A body too long for a datagram travels beside the others, in its place."""
    left, right = pair
    sent: list[protocol.Message] = [
        Failure("a" * size, size) for size in (10, 40_000, 0, 5_000_000, 1)
    ]
    for message in sent:
        left.send(message)
    assert right.receive() == sent
    left.close()
    assert right.receive() == []
    assert right.closed


def test_a_side_that_does_not_read_holds_nobody_up(pair: Pair) -> None:
    """Messages without room wait in order. A flush sends them once there is room again."""
    left, right = pair
    for number in range(2000):
        left.send(RoundDead(number))
    assert left.waiting > 0
    received: list[protocol.Message] = []
    while len(received) < 2000:
        received += right.receive()
        left.flush()
    assert received == [RoundDead(number) for number in range(2000)]


def test_sending_to_nobody_is_noticed(pair: Pair) -> None:
    """A closed other end is a state, not an exception."""
    left, right = pair
    right.close()
    left.send(EndZygote())
    assert left.broken
    assert left.waiting == 0
    assert left.receive() == []
    assert left.closed


@pytest.mark.parametrize("unread", [0, 2])
@pytest.mark.parametrize("late", [0, 2])
def test_the_last_messages_of_one_that_ended_arrive(pair: Pair, unread: int, late: int) -> None:
    """Also after a send that failed, and if it had not read all that it was sent."""
    left, right = pair
    for _ in range(unread):
        left.send(EndZygote())
    sent: list[protocol.Message] = [
        WorkerExitedEvent(round=1, local_rank=0, pid=7, exit_code=0, mono_ns=1),
        RoundDead(1),
    ]
    for message in sent:
        right.send(message)
    right.close()
    for _ in range(late):
        left.send(EndZygote())
    assert left.receive() == sent
    assert left.closed


def test_only_messages_can_be_encoded() -> None:
    """A value without a form is refused where it is sent."""
    with pytest.raises(TypeError, match="has no place in a message"):
        encode(Failure(b"bytes", 1))  # type: ignore[arg-type]
