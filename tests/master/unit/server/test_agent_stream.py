"""Streams of agents over real mTLS: what they may carry, and their ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast_master.inputs import Connected, DisconnectCause, Disconnected, Received
from holdfast_master.instructions import CloseSession, RefusalCode, Send
from holdfast_master.server import sessions
from holdfast_master.server.sessions import PeerStream
from holdfast_wire import codec
from holdfast_wire import messages as wire
from masters.scripted_core import ScriptedCore, on
from masters.served import JOB, USER, AgentStream, agent, eventually, refusal_of, serve


async def test_a_hello_is_answered_and_messages_keep_their_order(tmp_path: Path) -> None:
    """The core hears what an agent says, with its fence, in the order of the stream."""
    async with serve(tmp_path, ScriptedCore()) as served:
        stream = served.agent_stream(3)
        answer = await stream.hello(warm=True)
        assert isinstance(answer.message, wire.Welcome)
        fence = wire.Fence(epoch=1, incarnation="m1", round=4)
        for sequence in range(100):
            await stream.send(wire.Heartbeat(sequence=sequence), fence)
        heard = await served.told(Received, 100)
        connected = served.core.inputs[0]
        assert isinstance(connected, Connected)
        assert connected.hello.node_rank == 3
        expected = [
            Received(connected.session, fence, wire.Heartbeat(sequence=at)) for at in range(100)
        ]
        assert heard == expected


@pytest.mark.parametrize(
    ("hello", "code", "reason"),
    [
        (wire.Hello(job_uid="j2", node_rank=0, agent_id="a"), "PERMISSION_DENIED", "OTHER_JOB"),
        (wire.Hello(job_uid=JOB, node_rank=1, agent_id="a"), "PERMISSION_DENIED", "RANK_MISMATCH"),
        (wire.Hello(job_uid=JOB, node_rank=0), "INVALID_ARGUMENT", "MALFORMED_MESSAGE"),
        (wire.Heartbeat(), "INVALID_ARGUMENT", "MALFORMED_MESSAGE"),
        (None, "INVALID_ARGUMENT", "MALFORMED_MESSAGE"),
    ],
    ids=["another job", "another rank", "no agent id", "no hello", "nothing"],
)
async def test_a_wrong_first_message_is_refused(
    tmp_path: Path, hello: Any, code: str, reason: str
) -> None:
    """The rank and the job must be the certificate's; the core never hears of the stream."""
    async with serve(tmp_path, ScriptedCore()) as served:
        stream = served.agent_stream(0)
        await stream.send(hello)
        refusal = await refusal_of(stream.read())
        assert (refusal.code.name, refusal.reason) == (code, reason)
        assert served.core.inputs == []


async def test_an_agent_that_says_nothing_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open stream without a hello costs memory for a bounded time only."""
    monkeypatch.setattr("holdfast_master.server.agent_service.HELLO_SECONDS", 0.05)
    async with serve(tmp_path, ScriptedCore()) as served:
        stream = served.agent_stream(0)
        refusal = await refusal_of(stream.read())
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "NO_HELLO")


WRONG_BYTES = {
    "no protobuf": b"\xff\xff\xff",
    "cut short": codec.encode(wire.SessionRequest(message=wire.Goodbye(reason="long enough")))[:-4],
    "a second hello": codec.encode(wire.SessionRequest(message=wire.Hello(agent_id="a"))),
}


@pytest.mark.parametrize("data", WRONG_BYTES.values(), ids=WRONG_BYTES)
async def test_a_wrong_message_ends_only_its_own_stream(tmp_path: Path, data: bytes) -> None:
    """It is refused as INVALID_ARGUMENT and counted; the other agent goes on undisturbed."""
    async with serve(tmp_path, ScriptedCore()) as served:
        other, stream = served.agent_stream(1), served.agent_stream(0)
        await other.hello()
        await stream.hello()
        await stream.write(data)
        refusal = await refusal_of(stream.read())
        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
        assert refusal.reason == "MALFORMED_MESSAGE"
        (gone,) = await served.told(Disconnected)
        assert isinstance(gone, Disconnected)
        assert gone.cause is DisconnectCause.REFUSED
        await other.send(wire.Warmed())
        (heard,) = await served.told(Received)
        assert isinstance(heard, Received)
        assert served.master.counters.refused == {"MALFORMED_MESSAGE": 1}


NEWER_BYTES = {
    "nothing that is known": b"",
    "another message": b"\xba\x06\x00",
    "another number of an enum": b"\x1a\x06\x12\x04\x40\x63\x08\x01",
}


@pytest.mark.parametrize("data", NEWER_BYTES.values(), ids=NEWER_BYTES)
async def test_what_only_a_newer_agent_says_is_passed_over(tmp_path: Path, data: bytes) -> None:
    """A user's image may be a release ahead: its stream stays, and what is known is heard."""
    async with serve(tmp_path, ScriptedCore()) as served:
        stream = served.agent_stream(0)
        await stream.hello()
        await stream.write(data)
        await stream.send(wire.Warmed())
        (heard,) = await served.told(Received)
        assert isinstance(heard, Received)
        assert heard.message == wire.Warmed()
        assert (served.master.counters.newer, served.master.counters.refused) == (1, {})


async def test_a_message_that_is_too_large_ends_its_stream(tmp_path: Path) -> None:
    """Four MiB is the most; the master's memory is not the sender's to fill."""
    async with serve(tmp_path, ScriptedCore()) as served:
        unbounded = served.channel(agent(0), ("grpc.max_send_message_length", -1))
        stream = AgentStream(unbounded, 0)
        await stream.hello()
        await stream.write(bytes(5 * 1024 * 1024))
        assert (await refusal_of(stream.read())).code is grpc.StatusCode.RESOURCE_EXHAUSTED
        await served.told(Disconnected)


async def test_an_orderly_end_and_a_broken_one_are_told_apart(tmp_path: Path) -> None:
    """Half-closing is CLOSED, a vanished peer is RESET."""
    async with serve(tmp_path, ScriptedCore()) as served:
        closed, reset = served.agent_stream(0), served.agent_stream(1)
        await closed.hello()
        await reset.hello()
        await closed.call.done_writing()
        assert await closed.read() is grpc.aio.EOF
        await reset.channel.close()
        gone = await served.told(Disconnected, 2)
        causes = {item.session: item.cause for item in gone if isinstance(item, Disconnected)}
        assert causes == {1: DisconnectCause.CLOSED, 2: DisconnectCause.RESET}


async def test_a_reconnect_gets_a_new_session_number(tmp_path: Path) -> None:
    """Messages for the old stream can never reach the new one."""
    async with serve(tmp_path, ScriptedCore()) as served:
        for number in (1, 2, 3):
            stream = served.agent_stream(0)
            await stream.hello()
            connected = (await served.told(Connected, number))[-1]
            assert isinstance(connected, Connected)
            assert connected.session == number
            await stream.channel.close()


async def test_stale_settings_are_replaced_by_their_successors(tmp_path: Path) -> None:
    """Of heartbeat intervals and digests in one queue only the newest is sent."""
    told: list[Any] = [
        wire.HeartbeatInterval(heartbeat_seconds=1),
        wire.StateDigest(sequence=1),
        wire.DumpStacks(command_id=1),
        wire.HeartbeatInterval(heartbeat_seconds=2),
        wire.StateDigest(sequence=2),
    ]
    tell_all = [Send(1, wire.SessionResponse(message=message)) for message in told]
    async with serve(tmp_path, ScriptedCore(on(wire.Warmed, lambda _: [*tell_all]))) as served:
        stream = served.agent_stream(0)
        await stream.hello()
        await stream.send(wire.Warmed())
        assert [(await stream.receive()).message for _ in range(3)] == told[2:]


async def test_an_agent_that_does_not_read_is_cut_off_and_nobody_else_notices(
    tmp_path: Path,
) -> None:
    """The queue is bounded; the slow agent's stream ends, the other's goes on."""
    large = wire.SessionResponse(message=wire.StateDigest(excluded_nodes=("x" * 1_000,) * 300))
    filler = wire.SessionResponse(message=wire.DumpStacks(command_id=1))
    script = on(wire.Warmed, lambda _: [Send(1, large), Send(1, filler), Send(2, filler)])
    async with serve(tmp_path, ScriptedCore(script)) as served:
        slow, other = served.agent_stream(0), served.agent_stream(1)
        await slow.hello()
        await other.hello()

        async def ask() -> None:
            await other.send(wire.Warmed())
            assert isinstance((await other.receive()).message, wire.DumpStacks)

        queue = served.master.sessions._sessions[1]
        # gRPC itself takes a few MiB before it lets a write wait.
        while await emptied(queue):
            await ask()
        for _ in range(sessions.OUTBOX_LIMIT):
            await ask()
        (gone,) = await served.told(Disconnected)
        assert gone == Disconnected(1, DisconnectCause.REFUSED)
        await ask()
        # The status where the transport takes it after all, else the end of the connection.
        refusal = await refusal_of(slow.drain())
        assert refusal.code.name in {"UNAVAILABLE", "RESOURCE_EXHAUSTED"}
        await ask()


async def emptied(queue: PeerStream[wire.SessionResponse]) -> bool:
    """Return whether the queue is empty within a second."""
    try:
        async with asyncio.timeout(1.0):
            while len(queue):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.005)
    except TimeoutError:
        return False
    return True


async def test_a_session_that_the_core_closes_gets_what_was_queued_first(tmp_path: Path) -> None:
    """The agent reads its last message, then the status with its reason."""
    bye = Send(1, wire.SessionResponse(message=wire.DumpStacks(command_id=9)))
    close = CloseSession(1, RefusalCode.ABORTED, "REPLACED", "a newer agent")
    async with serve(tmp_path, ScriptedCore(on(Received, lambda _: [bye, close, bye]))) as served:
        stream = served.agent_stream(0)
        await stream.hello()
        await stream.send(wire.Warmed())
        assert (await stream.receive()).message == wire.DumpStacks(command_id=9)
        refusal = await refusal_of(stream.read())
        assert (refusal.code.name, refusal.reason) == ("ABORTED", "REPLACED")
        await asyncio.sleep(0)
        assert not [item for item in served.core.inputs if isinstance(item, Disconnected)]


async def test_what_is_sent_to_a_session_that_has_ended_is_dropped(tmp_path: Path) -> None:
    """The core may not know yet; nothing breaks."""
    late = Send(1, wire.SessionResponse(message=wire.DumpStacks(command_id=1)))
    async with serve(tmp_path, ScriptedCore(on(Disconnected, lambda _: [late]))) as served:
        stream = served.agent_stream(0)
        await stream.hello()
        await stream.channel.close()
        await served.told(Disconnected)
        again = served.agent_stream(0)
        assert isinstance((await again.hello()).message, wire.Welcome)


async def test_only_agents_open_sessions(tmp_path: Path) -> None:
    """A user with a valid certificate is refused by name, and the core hears of it."""
    async with serve(tmp_path, ScriptedCore()) as served:
        stream = AgentStream(served.channel(USER), 0)
        refusal = await refusal_of(stream.read())
        assert (refusal.code.name, refusal.reason) == ("PERMISSION_DENIED", "WRONG_ROLE")
        assert refusal.metadata == {"method": "/holdfast.v1.AgentService/Session", "role": "user"}
        told = await eventually(lambda: served.core.inputs, lambda found: len(found) == 1)
        assert told[0].text.startswith("user: role 'user' may not call")


async def test_sixty_agents_at_once(tmp_path: Path) -> None:
    """Streams do not wait for each other."""
    async with serve(tmp_path, ScriptedCore()) as served:
        streams = [AgentStream(served.channel(agent(rank)), rank) for rank in range(60)]
        await asyncio.gather(*(stream.hello() for stream in streams))
        await asyncio.gather(*(stream.send(wire.Warmed()) for stream in streams))
        heard = await served.told(Received, 60)
        assert len({item.session for item in heard if isinstance(item, Received)}) == 60
        assert sessions.OUTBOX_LIMIT == 64
