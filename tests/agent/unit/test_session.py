"""An agent's stream against a real server that resets, refuses, and says odd things."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast_agent.config.launch import Launch
from holdfast_agent.config.settings import Settings
from holdfast_agent.errors import AgentRefusedError
from holdfast_agent.master_link.session import MasterSession
from holdfast_wire import channel, codec
from holdfast_wire.identity import Identity
from holdfast_wire.messages import (
    Fence,
    Heartbeat,
    Hello,
    SessionRequest,
    SessionResponse,
    StopRound,
    Warmed,
    Welcome,
)
from masters.served import eventually
from messages import certificates

JOB = "j1"
FENCE = Fence(epoch=1)
WELCOME = SessionResponse(fence=FENCE, message=Welcome(max_replicas=2))
ANOTHER_OUTCOME = b"\x42\x02\x20\x63"
"""A Leave whose outcome is 99."""
AT_ONCE = 0.3
"""An agent that lost its stream is back before its master takes it for lost, s."""
Act = Callable[[Any], Awaitable[None]]


class Listener:
    """Notes what the session says."""

    def __init__(self) -> None:
        self.said: list[object] = []
        self.down: list[str] = []

    def hello(self) -> Hello:
        """As `session.Listener`."""
        return Hello(job_uid=JOB)

    def on_message(self, message: object, _: int) -> None:
        """As `session.Listener`."""
        self.said.append(message)

    def on_down(self, reason: str) -> None:
        """As `session.Listener`."""
        self.down.append(reason)


@contextlib.asynccontextmanager
async def served(
    act: Act, folder: Path
) -> AsyncIterator[tuple[MasterSession, Listener, asyncio.Task[None]]]:
    """A session to a server whose streams do what `act` says."""

    async def handle(_requests: object, context: Any) -> None:
        await act(context)

    handler: Any = grpc.stream_stream_rpc_method_handler(handle)
    server = grpc.aio.server()
    handlers = grpc.method_handlers_generic_handler(
        "holdfast.v1.AgentService", {"Session": handler}
    )
    server.add_generic_rpc_handlers((handlers,))
    tls = certificates.issue(folder, Identity(JOB, "master"))
    port = server.add_secure_port("127.0.0.1:0", channel.server_credentials(tls))
    await server.start()
    own = certificates.issue(folder, Identity(JOB, "agent", 0))
    listener = Listener()
    settings = Settings(launch=Launch(script=""), standalone=False, job_uid=JOB, tls_dir=own)
    session = MasterSession(settings, lambda: f"127.0.0.1:{port}", random.Random(7))
    task = asyncio.create_task(session.run(listener))
    try:
        yield session, listener, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.stop(0)


async def test_an_agent_whose_stream_broke_is_back_at_once(tmp_path: Path) -> None:
    """It says hello again, and its owner hears of each end; no two agents wait equally long."""
    hellos: list[Any] = []

    async def resets(context: Any) -> None:
        hellos.append(codec.decode(SessionRequest, await context.read()).message)
        await context.write(codec.encode(WELCOME))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    async with served(resets, tmp_path) as (session, listener, _):
        await eventually(lambda: listener.down, lambda down: len(down) >= 3)
        pauses = {session.pause(0, refused=False) for _ in range(200)}
    assert hellos[:3] == [Hello(job_uid=JOB)] * 3
    assert listener.down[0] == "UNAVAILABLE: gone"
    assert len(pauses) > 150
    assert max(pauses) < AT_ONCE / 3


async def test_a_refusal_for_good_ends_the_session(tmp_path: Path) -> None:
    """Another try would meet it again."""

    async def refuses(context: Any) -> None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "another job")

    async with served(refuses, tmp_path) as (_, _, task):
        with pytest.raises(AgentRefusedError, match="PERMISSION_DENIED: another job"):
            await asyncio.wait_for(task, 20)


async def test_a_message_that_cannot_be_sent_does_not_silence_the_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and left out; the heartbeats behind it still count."""
    heard: list[Any] = []

    async def listens(context: Any) -> None:
        await context.read()
        await context.write(codec.encode(WELCOME))
        while (data := await context.read()) is not grpc.aio.EOF:
            heard.append(codec.decode(SessionRequest, data).message)

    async with served(listens, tmp_path) as (session, listener, _):
        await eventually(lambda: listener.said, bool)
        session.report(Warmed(cold_reason="\ud800"))
        session.report(Heartbeat(sequence=1))
        await eventually(lambda: heard, bool)
        assert heard == [Heartbeat(sequence=1)]
    assert caplog.text.count("the master is not told") == 1


async def test_only_the_first_message_has_to_be_understood(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A newer master's later messages are passed over; its first one opens nothing."""
    firsts = iter(
        [ANOTHER_OUTCOME, codec.encode(SessionResponse(fence=FENCE, message=StopRound()))]
    )

    async def speaks(context: Any) -> None:
        await context.read()
        for data in (
            next(firsts, codec.encode(WELCOME)),
            ANOTHER_OUTCOME,
            codec.encode(SessionResponse(fence=FENCE, message=StopRound(command_id=1))),
        ):
            await context.write(data)
        await asyncio.Event().wait()

    async with served(speaks, tmp_path) as (session, listener, _):
        await eventually(lambda: listener.said, lambda said: len(said) == 2)
        assert listener.said == [WELCOME.message, StopRound(command_id=1)]
        assert (session.connected, listener.down) == (True, [])
    assert caplog.text.count("a message of the master was dropped") == 2
