"""The process kubelet's port-forward, over real sockets: SPDY bare and in a websocket."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol

import aiohttp
import pytest
from aiohttp import web

from cluster.kubelet.forward import forward
from cluster.kubelet.spaces import Space
from cluster.kubelet.spdy import (
    DICTIONARY,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    Data,
    Frame,
    Framer,
    GoAway,
    Ping,
    RstStream,
    SpdyError,
    SynReply,
    SynStream,
    Unheeded,
)

_PORT: Final = 80
"""Of the pretended pod; what it leads to is the test's."""
_SHUT: Final = 81
_TIMEOUT_SECONDS: Final = 10.0
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class _Wire(Protocol):
    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None: ...


class _Bare:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        return await self._reader.read(65536)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()


class _Tunnel:
    def __init__(
        self, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse
    ) -> None:
        self._session, self._socket = session, socket

    async def read(self) -> bytes:
        message = await self._socket.receive()
        return message.data if message.type is aiohttp.WSMsgType.BINARY else b""

    async def write(self, data: bytes) -> None:
        await self._socket.send_bytes(data)

    async def close(self) -> None:
        await self._socket.close()
        await self._session.close()


class _Client:
    """A stand-in for kubectl. It opens streams and keeps what comes on each of them."""

    def __init__(self, wire: _Wire) -> None:
        self.wire = wire
        self._framer = Framer()
        self.data: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.frames: list[Frame] = []
        self._streams = iter(range(1, 1000, 2))

    async def send(self, *frames: Frame) -> None:
        await self.wire.write(b"".join(map(self._framer.encode, frames)))

    async def open(self, kind: str, request: str, port: int = _PORT) -> int:
        """Open one stream as kubectl does; return its number."""
        stream = next(self._streams)
        headers = {"streamType": kind, "port": str(port), "requestID": request}
        await self.send(SynStream(stream, headers))
        if kind == "error":
            await self.send(Data(stream, fin=True))
        return stream

    async def pair(self, request: str, port: int = _PORT) -> tuple[int, int]:
        """Open the two streams of one connection."""
        return await self.open("error", request, port), await self.open("data", request, port)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Read until something holds."""
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            while not holds():
                data = await self.wire.read()
                assert data, f"the connection ended after {self.frames[-3:]}"
                for frame in self._framer.feed(data):
                    self._keep(frame)

    def _keep(self, frame: Frame) -> None:
        if isinstance(frame, Data):
            self.data[frame.stream] = self.data.get(frame.stream, b"") + frame.data
            if frame.fin:
                self.ended.add(frame.stream)
        else:
            self.frames.append(frame)


Connect = Callable[[Serve], Awaitable[_Client]]


async def _bare(port: int) -> _Wire:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = ["POST /forward HTTP/1.1", "Host: h", "Connection: Upgrade", "Upgrade: SPDY/3.1"]
    lines += ["X-Stream-Protocol-Version: portforward.k8s.io", "", ""]
    writer.write("\r\n".join(lines).encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"X-Stream-Protocol-Version: portforward.k8s.io\r\n" in head
    return _Bare(reader, writer)


async def _tunnel(port: int) -> _Wire:
    session = aiohttp.ClientSession()
    protocol = "SPDY/3.1+portforward.k8s.io"
    socket = await session.ws_connect(f"http://127.0.0.1:{port}/forward", protocols=[protocol])
    assert socket.protocol == protocol
    return _Tunnel(session, socket)


@pytest.fixture(params=[_bare, _tunnel])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Starts a pod's program and a kubelet before it; returns a client of the latter."""
    async with contextlib.AsyncExitStack() as stack:

        async def made(serve: Serve) -> _Client:
            pod = await stack.enter_async_context(await asyncio.start_server(serve, "127.0.0.1", 0))
            port = pod.sockets[0].getsockname()[1]
            wire = await request.param(await _kubelet(stack, port))
            stack.push_async_callback(wire.close)
            return _Client(wire)

        yield made


async def _kubelet(stack: contextlib.AsyncExitStack, pod: int) -> int:
    async def dial(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if port != _PORT:
            raise ConnectionRefusedError(111, "nobody listens")
        return await asyncio.open_connection("127.0.0.1", pod)

    async def handle(request: web.Request) -> web.StreamResponse:
        return await forward(request, dial)

    application = web.Application()
    application.router.add_route("*", "/forward", handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return int(runner.addresses[0][1])


async def _ack(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def _swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say how much it was sent, once it is told that this is all."""
    writer.write(b"%d" % len(await reader.read()))
    writer.close()


async def _leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"bye")
    writer.close()


async def _break(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(1, 13, linger)  # SOL_SOCKET, SO_LINGER: a reset
    writer.close()


async def test_connections_are_forwarded_side_by_side(connect: Connect) -> None:
    """Each has its two streams; more than a window of 64 KiB passes in both directions."""
    client = await connect(_ack)
    pairs = [await client.pair(str(number)) for number in range(3)]
    whole = {data: bytes([data]) * (1 << 20) for _, data in pairs}
    for start in range(0, 1 << 20, 1 << 16):
        await client.send(*(Data(one, whole[one][start : start + (1 << 16)]) for one in whole))
    await client.send(*(Data(one, fin=True) for one in whole))
    streams = {stream for pair in pairs for stream in pair}
    await client.until(lambda: client.ended == streams)
    assert {one: client.data[one] for one in whole} == whole
    assert all(not client.data[error] for error, _ in pairs)
    assert [frame for frame in client.frames if not isinstance(frame, SynReply)] == []


async def test_the_end_of_one_direction_leaves_the_other(connect: Connect) -> None:
    """The pod hears that the client has said everything, and answers then."""
    client = await connect(_swallow)
    error, data = await client.pair("0")
    await client.send(Data(data, b"12345"), Data(data, fin=True), Data(data, b"too late"))
    await client.until(lambda: client.ended == {error, data})
    assert client.data[data] == b"5"


async def test_the_pods_end_ends_both_streams(connect: Connect) -> None:
    """Although the client has not said everything; the next connection works."""
    client = await connect(_leave)
    for request in ("0", "1"):
        error, data = await client.pair(request)
        await client.until(lambda both={error, data}: both <= client.ended)  # type: ignore[misc]
        assert (client.data[data], client.data[error]) == (b"bye", b"")
        await client.send(RstStream(data, 5))  # as kubectl does then


@pytest.mark.parametrize(("serve", "port"), [(_ack, _SHUT), (_break, _PORT)])
async def test_what_went_wrong_is_told_on_the_other_stream(
    connect: Connect, serve: Serve, port: int
) -> None:
    """Nobody listens, or the connection breaks: the sentence names the port."""
    client = await connect(serve)
    error, data = await client.pair("0", port)
    await client.send(Data(data, b"x"))
    await client.until(lambda: {error, data} <= client.ended)
    assert client.data[error].startswith(b"error forwarding port %d: " % port)
    assert client.data[data] == b""


async def test_a_reset_ends_the_pods_connection(connect: Connect) -> None:
    """The client gave up: it is told the end of the errors, and the pod sees the end."""
    ended = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await reader.read()
        ended.set()
        writer.close()

    client = await connect(listen)
    error, data = await client.pair("0")
    await client.until(lambda: client.data.get(data) == b"hello")
    await client.send(RstStream(data, 5))
    await client.until(lambda: error in client.ended)
    await asyncio.wait_for(ended.wait(), _TIMEOUT_SECONDS)


async def test_everything_ends_with_the_client(connect: Connect) -> None:
    """It goes away, or its connection ends: so does what it had forwarded."""
    begun, ended = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.release()
        await reader.read()
        ended.release()
        writer.close()

    for frames in ([GoAway(0, 0)], []):
        client = await connect(listen)
        await client.pair("0")
        await asyncio.wait_for(begun.acquire(), _TIMEOUT_SECONDS)
        await client.send(*frames)
        if not frames:
            await client.wire.close()
        await asyncio.wait_for(ended.acquire(), _TIMEOUT_SECONDS)


async def test_streams_that_make_no_sense_are_refused(connect: Connect) -> None:
    """Without a port, of no known kind, twice, with a number of the server's: the rest goes on."""
    client = await connect(_ack)
    await client.open("error", "0")
    await client.open("error", "0")
    await client.open("noise", "1")
    await client.open("data", "2", 0)
    await client.send(SynStream(4, {}), SynStream(1, {}))
    wrong = [RstStream(3, REFUSED_STREAM), RstStream(5, REFUSED_STREAM)]
    wrong += [RstStream(7, REFUSED_STREAM), RstStream(4, PROTOCOL_ERROR)]
    wrong += [RstStream(1, PROTOCOL_ERROR)]
    await client.until(lambda: len(client.frames) == 6)
    assert client.frames == [SynReply(1, {}), *wrong]
    await client.open("data", "0")
    await client.send(Ping(7), Ping(8))
    await client.until(lambda: Ping(7) in client.frames)
    assert client.frames[-2:] == [SynReply(9, {}), Ping(7)]


@pytest.mark.parametrize("broken", [b"\x80 HTTP/1.1 400", b"\x80\x03\x00\x03\0\0\0\x01x"])
async def test_no_frames_end_the_connection_with_a_word(connect: Connect, broken: bytes) -> None:
    """The client is told that it broke the protocol."""
    client = await connect(_ack)
    await client.wire.write(broken)
    await client.until(lambda: bool(client.frames))
    assert client.frames == [GoAway(0, PROTOCOL_ERROR)]


async def test_who_asks_for_something_else_is_refused() -> None:
    """A request without an upgrade, and a version of the protocol that is not there."""
    async with contextlib.AsyncExitStack() as stack:
        url = f"http://127.0.0.1:{await _kubelet(stack, 1)}/forward"
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with session.post(url) as answer:
            assert answer.status == 400
        headers = {"Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v2.portforward.k8s.io"}
        async with session.post(url, headers={"Connection": "Upgrade", **headers}) as answer:
            assert (answer.status, "portforward.k8s.io" in await answer.text()) == (403, True)


@pytest.mark.parametrize(
    "frame",
    [
        SynStream(1, {"streamtype": "data", "port": "80"}, fin=True),
        SynReply((1 << 31) - 1, {}),
        RstStream(3, 5),
        Ping(9),
        GoAway(3, 0),
        Data(5, bytes(70000), fin=True),
        Data(7),
    ],
)
def test_a_frame_comes_out_as_it_went_in(frame: Frame) -> None:
    """Byte by byte, after others, and twice: the compression of headers remembers."""
    there, here = Framer(), Framer()
    sent = b"".join(there.encode(one) for one in (SynReply(1, {"port": "80"}), frame, frame))
    found = [one for byte in sent for one in here.feed(bytes([byte]))]
    assert found[1:] == [frame, frame]


# What the framer of github.com/moby/spdystream v0.5.1 wrote.
_OF_SPDYSTREAM: Final = (
    "80030001000000290000000100000000000078f9e3c6a7c26260606004a7b392a2d4c45c6851c29a0a0a6800000000"
    "ffff800300010100001b00000003000000000000824ab114e417819231938501000000ffff000000010100000178"
    "800300020000000e000000036260606000000000ffff800300030000000800000003000000058003000600000004"
    "000000078003000700000008000000030000000080030009000000080000000300000001"
    "800300040000000c000000010000000400000064"
)


def test_frames_of_kubectls_own_library_are_understood() -> None:
    """Headers of two frames, packed one against the other, and every other type that it has."""
    assert list(Framer().feed(bytes.fromhex(_OF_SPDYSTREAM))) == [
        SynStream(1, {"streamtype": "error"}),
        SynStream(3, {"port": "80"}, fin=True),
        Data(1, b"x", fin=True),
        SynReply(3, {}),
        RstStream(3, 5),
        Ping(7),
        GoAway(3, 0),
        Unheeded(9),
        Unheeded(4),
    ]


def test_what_changes_nothing_is_passed_over() -> None:
    """SETTINGS, WINDOW_UPDATE, an unknown type; HEADERS are unpacked, for the sake of the next."""
    there, here = Framer(), Framer()
    reply = there.encode(SynReply(1, {"port": "80"}))
    headers = reply[:3] + b"\x08" + reply[4:]
    settings = b"\x80\x03\0\x04\0\0\0\x04\0\0\0\0"
    window = b"\x80\x03\0\x09\0\0\0\x08\0\0\0\x01\0\1\0\0"
    unknown = b"\x80\x03\0\x0b\0\0\0\0"
    last = SynReply(3, {"port": "81"})
    found = list(here.feed(headers + settings + window + unknown + there.encode(last)))
    assert found == [Unheeded(8), Unheeded(4), Unheeded(9), Unheeded(11), last]


def test_headers_that_would_fill_the_memory_are_refused() -> None:
    """A frame may unpack to a thousand times its size."""
    packer = zlib.compressobj(zdict=DICTIONARY)
    block = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_SYNC_FLUSH)
    frame = struct.pack(">HHII", 0x8003, 2, 4 + len(block), 1) + block
    with pytest.raises(SpdyError, match="headers of more than"):
        list(Framer().feed(frame))


async def test_nobody_gets_a_socket_of_the_host_for_that_of_a_pod_that_is_gone() -> None:
    """A forward outlives its pod, and 127.0.0.1 would be this machine's own."""
    server = await asyncio.start_server(_leave, "127.0.0.1", 0)
    async with server:
        space = Space.__new__(Space)
        space._descriptor = -1  # as close() leaves it; to make one needs root
        with pytest.raises(ConnectionRefusedError, match="gone"):
            await space.dial("127.0.0.1", server.sockets[0].getsockname()[1])
