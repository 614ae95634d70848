"""The one stream to a master: against servers that reset, refuse, hang, and say odd things."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast_wire import channel, codec, stream
from holdfast_wire.identity import Identity
from holdfast_wire.messages import PodObservation, ScaleResult, SyncRequest, SyncResponse
from holdfast_wire.messages import ReleaseDecision as Release
from masters.served import eventually
from messages import certificates

JOB = "j1"
METHOD = "/holdfast.v1.OperatorService/Sync"
OPENING = SyncRequest(message=ScaleResult(decision_id=1))
LATER = SyncRequest(message=ScaleResult(decision_id=2))
GREETING = SyncResponse(message=Release(decision_id=1))
NEWER = b"\x0a\x02\x18\x63"
"""A JobStatus whose phase is 99."""
Act = Callable[["Server", Any], Awaitable[None]]


class Server:
    """A real server: each stream does what `act` says, and what it reads is kept."""

    def __init__(self, act: Act) -> None:
        self.act = act
        self.port = 0
        self.streams = 0
        self.read: list[SyncRequest] = []
        self._server: grpc.aio.Server | None = None

    async def reads(self, context: Any) -> bool:
        """Keep the next request; return whether there was one."""
        data = await context.read()
        if data is grpc.aio.EOF:
            return False
        self.read.append(codec.decode(SyncRequest, data))
        return True

    async def says(self, context: Any, response: SyncResponse = GREETING) -> None:
        """Send a response."""
        await context.write(codec.encode(response))

    async def _sync(self, _requests: object, context: Any) -> None:
        self.streams += 1
        await self.act(self, context)

    async def start(self, folder: Path, port: int = 0) -> None:
        """Listen."""
        handler: Any = grpc.stream_stream_rpc_method_handler(self._sync)
        service, name = METHOD[1:].split("/")
        self._server = grpc.aio.server()
        handlers = grpc.method_handlers_generic_handler(service, {name: handler})
        self._server.add_generic_rpc_handlers((handlers,))
        tls = certificates.issue(folder, Identity(JOB, "master"))
        credentials = channel.server_credentials(tls)
        self.port = self._server.add_secure_port(f"127.0.0.1:{port}", credentials)
        await self._server.start()

    async def stop(self) -> None:
        """Reset every stream."""
        if self._server is not None:
            await self._server.stop(0)


class Owner:
    """Peer and pace of a stream: notes what it is told, and is as patient as the test says."""

    def __init__(self, greeting: float | None = None, connect: float = 5.0) -> None:
        self.greeting = greeting
        self.connect = connect
        self.requests: list[SyncRequest] = [OPENING]
        self.said: list[SyncResponse] = []
        self.ends: list[stream.StreamEnding] = []
        self.newer: list[codec.WireError] = []
        self.left_out: list[codec.WireError] = []
        self.pauses: list[tuple[int, bool]] = []
        self.on_opening: Callable[[], bool] = lambda: True
        self.on_received: Callable[[SyncResponse], bool] = lambda _: True

    def opening(self) -> list[SyncRequest]:
        """As `stream.Peer`."""
        self.on_opening()
        return self.requests

    def received(self, response: SyncResponse) -> bool:
        """As `stream.Peer`."""
        self.said.append(response)
        return self.on_received(response)

    def unreadable(self, error: codec.WireError) -> None:
        """As `stream.Peer`."""
        self.newer.append(error)

    def unsendable(self, error: codec.WireError) -> None:
        """As `stream.Peer`."""
        self.left_out.append(error)

    def ended(self, end: stream.StreamEnding) -> None:
        """As `stream.Peer`."""
        self.ends.append(end)

    def connect_seconds(self, _attempt: int) -> float:
        """As `stream.Pace`."""
        return self.connect

    def greeting_seconds(self) -> float | None:
        """As `stream.Pace`."""
        return self.greeting

    def pause(self, attempt: int, *, refused: bool) -> float:
        """As `stream.Pace`."""
        self.pauses.append((attempt, refused))
        return 0.01


def made(
    owner: Owner,
    folder: Path,
    endpoint: Callable[[], str | None],
    outbox: Callable[[], stream.SendQueue] = stream.SendQueue,
    beside: Callable[[grpc.aio.Channel], Any] | None = None,
) -> stream.Stream[SyncResponse]:
    """Return a stream of this owner."""
    dial = stream.Dial(
        endpoint=endpoint,
        tls_dir=lambda: certificates.issue(folder, Identity(JOB, "operator")),
        options=lambda limit: channel.master_channel_options(JOB, limit),
    )
    return stream.Stream(METHOD, SyncResponse, dial, owner, owner, outbox, beside)


@contextlib.asynccontextmanager
async def running(line: stream.Stream[SyncResponse]) -> AsyncIterator[asyncio.Task[None]]:
    """Run a stream until the block ends."""
    task = asyncio.create_task(line.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def served(
    act: Act, owner: Owner, folder: Path, **more: Any
) -> AsyncIterator[tuple[Server, stream.Stream[SyncResponse]]]:
    """Run a server and a stream to it."""
    server = Server(act)
    await server.start(folder)
    line = made(owner, folder, lambda: f"127.0.0.1:{server.port}", **more)
    try:
        async with running(line):
            yield server, line
    finally:
        await server.stop()


async def talks(server: Server, context: Any) -> None:
    """Greet after the first request, then read for ever."""
    await server.reads(context)
    await server.says(context)
    while await server.reads(context):
        pass


async def test_each_new_stream_begins_with_the_opening(tmp_path: Path) -> None:
    """A server that resets its streams is told everything again, by the same object."""

    async def resets(server: Server, context: Any) -> None:
        await server.reads(context)
        await server.says(context)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    owner = Owner()
    async with served(resets, owner, tmp_path) as (server, _):
        await eventually(lambda: len(owner.ends), lambda count: count >= 3)
    assert server.read[:3] == [OPENING] * 3
    first = owner.ends[0]
    assert (first.reason, first.greeted, first.refused) == ("UNAVAILABLE: gone", True, False)
    assert first.code is grpc.StatusCode.UNAVAILABLE
    assert owner.pauses[0] == (0, False), "no failed try: the next one follows at once"


async def test_a_server_that_dies_and_returns_is_found_again(tmp_path: Path) -> None:
    """Refused tries in between count for the pauses; the first greeting ends the count."""
    owner = Owner()
    async with served(talks, owner, tmp_path) as (server, line):
        await eventually(lambda: owner.said, bool)
        await server.stop()
        await eventually(lambda: owner.pauses, lambda pauses: (2, True) in pauses)
        assert not owner.ends[-1].greeted
        assert owner.ends[-1].refused
        await server.start(tmp_path, server.port)
        await eventually(lambda: len(owner.said), lambda count: count == 2)
        assert line.send(LATER)
        await eventually(lambda: server.read, lambda read: LATER in read)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and says nothing: a frozen process."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


async def test_a_server_that_hangs_in_the_handshake_is_given_up(
    tmp_path: Path, silent_port: int
) -> None:
    """After twice the time for an attempt; that counts as refused."""
    owner = Owner(connect=0.1)
    async with running(made(owner, tmp_path, lambda: f"127.0.0.1:{silent_port}")):
        await eventually(lambda: owner.ends, bool)
    assert owner.ends[0].refused
    assert owner.said == []


async def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """A server without a greeting in time is given up. Only the opening was sent to it."""

    async def hangs(server: Server, context: Any) -> None:
        while await server.reads(context):
            pass

    owner = Owner(greeting=0.3)
    async with served(hangs, owner, tmp_path) as (server, line):
        await eventually(lambda: server.read, bool)
        assert line.send(LATER), "it is dropped, which is no flood"
        await eventually(lambda: owner.ends, bool)
    assert isinstance(owner.ends[0].error, stream.SilentError)
    assert (owner.ends[0].reason, owner.ends[0].greeted) == ("no answer within 0 s", False)
    assert LATER not in server.read


async def test_a_refusal_says_its_status(tmp_path: Path) -> None:
    """So that the owner can tell one that another try would meet again."""

    async def refuses(_server: Server, context: Any) -> None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")

    owner = Owner()
    async with served(refuses, owner, tmp_path):
        await eventually(lambda: owner.ends, bool)
    assert owner.ends[0].code is grpc.StatusCode.PERMISSION_DENIED
    assert owner.ends[0].reason == "PERMISSION_DENIED: not you"


async def test_a_stream_that_ends_in_order_is_opened_again(tmp_path: Path) -> None:
    """As after a reset, without an error."""

    async def ends(server: Server, context: Any) -> None:
        await server.reads(context)
        await server.says(context)

    owner = Owner()
    async with served(ends, owner, tmp_path):
        await eventually(lambda: len(owner.ends), lambda count: count >= 2)
    assert (owner.ends[0].reason, owner.ends[0].error) == ("the stream ended", None)


async def test_nothing_is_dialled_without_an_address(tmp_path: Path) -> None:
    """A master that is still starting: the owner hears of it and of no error."""
    owner = Owner()
    async with running(made(owner, tmp_path, lambda: None)):
        await eventually(lambda: len(owner.ends), lambda count: count >= 2)
    assert owner.ends[0] == stream.StreamEnding("it has no address yet", "")


async def test_what_one_side_does_not_know_is_left_out(tmp_path: Path) -> None:
    """A newer release's message, and a value that the wire does not take: the rest is said."""

    async def newer(server: Server, context: Any) -> None:
        await context.write(NEWER)
        await talks(server, context)

    owner = Owner()
    owner.requests = [SyncRequest(message=PodObservation(node_rank=-1)), OPENING]
    async with served(newer, owner, tmp_path) as (server, _):
        await eventually(lambda: owner.said, bool)
        assert (server.read, owner.said) == ([OPENING], [GREETING])
    assert "phase is 99" in str(owner.newer[0])
    assert "PodObservation cannot be encoded" in str(owner.left_out[0])


async def test_the_owner_may_hang_up(tmp_path: Path) -> None:
    """A master that is none any more: that stream was not greeted."""
    owner = Owner()
    owner.on_received = lambda _: False
    async with served(talks, owner, tmp_path):
        await eventually(lambda: owner.ends, bool)
    assert (owner.ends[0].reason, owner.ends[0].greeted) == ("this side hung up", False)


async def test_a_fault_of_the_owner_ends_the_run_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """In what a stream begins with, which another task writes, and in what it makes of a message.

    Neither may leave a stream open on which one side is silent for ever.
    """
    owner = Owner()
    faults = iter([RuntimeError("opening"), None, None])
    others = iter([RuntimeError("received"), None])

    def fails(error: Exception | None) -> bool:
        if error is not None:
            raise error
        return True

    owner.on_opening = lambda: fails(next(faults))
    owner.on_received = lambda _: fails(next(others))
    server = Server(talks)
    await server.start(tmp_path)
    line = made(owner, tmp_path, lambda: f"127.0.0.1:{server.port}")
    try:
        for words in ("opening", "received"):
            with pytest.raises(RuntimeError, match=words):
                await asyncio.wait_for(line.run(), 20)
        async with running(line):
            await eventually(lambda: len(owner.said), lambda count: count == 2)
    finally:
        await server.stop()


async def test_a_flood_opens_a_new_stream(tmp_path: Path) -> None:
    """Past the limit of the queue: the new stream's opening says it all."""
    owner = Owner()
    async with served(talks, owner, tmp_path, outbox=lambda: stream.SendQueue(2)) as (server, line):
        await eventually(lambda: owner.said, bool)
        assert [line.send(LATER) for _ in range(3)] == [True, True, False]
        await eventually(lambda: server.streams, lambda count: count == 2)
        assert server.read.count(LATER) == 2, "what waited was still sent"


async def test_closing_sends_what_waits(tmp_path: Path) -> None:
    """And ends the stream from this side; no other follows."""
    owner = Owner()
    server = Server(talks)
    await server.start(tmp_path)
    line = made(owner, tmp_path, lambda: f"127.0.0.1:{server.port}")
    try:
        async with running(line) as task:
            await eventually(lambda: owner.said, bool)
            line.send(LATER)
            await line.close(20.0)
            await asyncio.wait_for(task, 20)
    finally:
        await server.stop()
    assert server.read == [OPENING, LATER]
    assert [end.error for end in owner.ends] == [None]
    assert server.streams == 1


async def test_what_runs_beside_lives_as_long_as_the_stream(tmp_path: Path) -> None:
    """On the same channel, from the first message on."""
    channels: list[grpc.aio.Channel] = []
    over: list[bool] = []

    async def watches(link: grpc.aio.Channel) -> None:
        channels.append(link)
        try:
            await asyncio.Event().wait()
        finally:
            over.append(True)

    owner = Owner()
    async with served(talks, owner, tmp_path, beside=watches) as (server, _):
        await eventually(lambda: channels, bool)
        assert over == []
        await server.stop()
        await eventually(lambda: over, bool)


async def test_cancelling_the_run_is_no_end_of_a_stream(tmp_path: Path) -> None:
    """The owner's own cancellation reaches its task."""
    owner = Owner()
    async with served(talks, owner, tmp_path) as (_, line):
        await eventually(lambda: owner.said, bool)
        async with running(line) as second:
            await eventually(lambda: len(owner.said), lambda count: count == 2)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
    assert owner.ends == []
