"""Parts of checkpoints between two agents over gRPC and mutual TLS, from real keepers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from agents.agent_process import eventually
from checkpoints.led_nodes import Rank, rank_of
from checkpoints.lone_peers import nobody
from checkpoints.sample_shards import sample_shard
from holdfast.flash.memory.shard_table import ShardTable
from holdfast.flash.memory.slots import SlotState, Version
from holdfast.flash.server.peer_parts import GatherError, PartPlace
from holdfast_agent.checkpoint import parts
from holdfast_agent.checkpoint.arenas import Arenas
from holdfast_agent.checkpoint.parts import PartReader
from holdfast_agent.master_link.peers import PeerServer
from holdfast_wire import channel, codec, keys
from holdfast_wire.identity import Identity
from holdfast_wire.messages import (
    ByteRange,
    Fence,
    GetRoundResponse,
    ReadPartRequest,
)
from holdfast_wire.v1 import peer_pb2_grpc
from messages.certificates import issue

JOB = "uid-1"
SAVED = Version(1, 7)
ROWS = 30_000
"""Of 120 bytes: several pieces of a message each."""


@dataclass
class Lender:
    """An agent's part in it, with a rank that has saved, and who reads from it."""

    address: str
    arenas: Arenas
    server: PeerServer
    rank: Rank
    reader: PartReader
    tls: Path
    round: int = 2

    def part(self, version: Version = SAVED) -> PartPlace:
        """Return the place of the rank's part."""
        return PartPlace(self.address, 2, version, 0)


def _large() -> ShardTable:
    table = sample_shard(0, 1, random.Random(0))[0].table
    (item,) = table.tensors
    size = ROWS * 120
    big = replace(item, shape=(ROWS, 30), sizes=(ROWS, 30), length=size + 128, size=size)
    return replace(table, tensors=(big,), tensor_bytes=size + 128)


def _fence(number: int) -> Fence:
    return Fence(epoch=1, incarnation="one", round=number)


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a connection that never comes."""
    monkeypatch.setattr(parts, "CONNECT_SECONDS", 1.0)


@pytest.fixture
async def lender(tmp_path: Path) -> AsyncIterator[Lender]:
    """An agent on loopback that lends a part of 3.6 MB."""
    tls = issue(tmp_path / "tls", Identity(JOB, keys.ROLE_AGENT, 0))
    arenas, stack = Arenas(), ExitStack()
    found: list[Lender] = []
    server = PeerServer(lambda: GetRoundResponse(fence=_fence(found[0].round)), arenas)
    address = await server.start("127.0.0.1", tls)
    arenas.open(lambda *_: None, nobody)
    (tmp_path / "root").mkdir()
    trainer = rank_of(arenas, tmp_path / "root", 0, world=1, table=_large())
    rank = await asyncio.to_thread(stack.enter_context, trainer)
    await asyncio.to_thread(rank.save, SAVED)
    found.append(Lender(address, arenas, server, rank, PartReader(_fence, JOB, tls), tls))
    yield found[0]
    await asyncio.to_thread(stack.close)
    await server.stop()
    await arenas.close(5.0)


async def _read(lender: Lender, *ranges: tuple[int, int], version: Version = SAVED) -> bytes:
    into = memoryview(bytearray(5 * 2**20))
    await asyncio.to_thread(lender.reader.read, lender.part(version), ranges, into)
    return b"".join(bytes(into[begin : begin + length]) for begin, length in ranges)


async def test_a_part_is_described_and_read_as_it_lies_in_memory(lender: Lender) -> None:
    """Table, lengths and hashes; any ranges, in pieces; afterwards nothing keeps the slot."""
    found = await asyncio.to_thread(lender.reader.describe, lender.part())
    arena = lender.rank.arena
    assert (found.table, found.lengths) == (arena.body, (10,))
    assert found.bytes_room == arena.geometry.bytes_room
    assert len(found.hashes) == arena.table.count
    slot = next(slot for slot in arena.slots if slot.state is SlotState.VALID)
    slot_bytes = bytes(slot.image)
    ranges = ((0, 3 * 2**20 + 5), (ROWS * 120, 100))
    assert await _read(lender, *ranges) == b"".join(slot_bytes[a : a + n] for a, n in ranges)
    loan = await lender.arenas.lend(SAVED, 0)
    assert loan is not None
    assert loan.held.reading == [slot.index], "the readings before have ended"
    lender.arenas.take_back(loan)


@pytest.mark.parametrize(
    ("version", "ranges", "words"),
    [
        (Version(1, 8), ((0, 10),), "NOT_FOUND: step 8 of round 1: no part of rank 0"),
        (SAVED, ((0, 2**40),), "OUT_OF_RANGE"),
    ],
)
async def test_what_is_not_there_is_said(
    lender: Lender, version: Version, ranges: tuple[tuple[int, int], ...], words: str
) -> None:
    """A step that is gone, bytes beyond the image."""
    with pytest.raises(GatherError, match=words):
        await _read(lender, *ranges, version=version)


async def test_who_asks_for_a_round_that_is_over_gets_nothing(lender: Lender) -> None:
    """Its world is no more; the memory may be another one's by now."""
    lender.round = 3
    with pytest.raises(GatherError, match="round 2 is over: this agent has accepted round 3"):
        await _read(lender, (0, 10))


async def test_only_agents_may_read(lender: Lender, tmp_path: Path) -> None:
    """A user's certificate of the same job is refused; another job's is no certificate."""
    user = PartReader(_fence, JOB, issue(tmp_path / "user", Identity(JOB, keys.ROLE_USER)))
    with pytest.raises(GatherError, match="agents only"):
        await asyncio.to_thread(user.describe, lender.part())
    stranger = issue(tmp_path / "other", Identity("uid-2", keys.ROLE_AGENT, 0))
    other = PartReader(_fence, JOB, stranger)
    with pytest.raises(GatherError, match="does not answer"):
        await asyncio.to_thread(other.describe, lender.part())


async def test_an_agent_that_is_gone_is_said_so(lender: Lender) -> None:
    """Its port answers no more."""
    await lender.server.stop()
    with pytest.raises(GatherError, match=f"the agent at {lender.address}"):
        await _read(lender, (0, 10))


async def test_a_reader_that_gives_up_frees_the_slot(lender: Lender) -> None:
    """An agent that dies in the middle must not keep another's memory for good."""
    loan = await lender.arenas.lend(SAVED, 0)
    assert loan is not None
    lender.arenas.take_back(loan)
    ranges = [ByteRange(begin=0, length=3 * 2**20)] * 500
    request = ReadPartRequest(fence=_fence(2), version=SAVED, ranges=tuple(ranges))
    options, credentials = (
        channel.peer_channel_options(JOB),
        channel.channel_credentials(lender.tls),
    )
    async with grpc.aio.secure_channel(lender.address, credentials, options) as link:
        stub: Any = peer_pb2_grpc.PeerServiceStub(link)
        call = stub.ReadPart(codec.to_proto(request))
        assert len((await call.read()).data) == 2**20
        assert loan.held.reading, "the slot stays while it is read"
        call.cancel()
        await eventually(lambda: not loan.held.reading)
