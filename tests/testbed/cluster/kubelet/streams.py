"""The server's side of a port-forward over SPDY: pairs of streams, each with a socket of the pod.

For each connection that it forwards, the client opens two streams that carry the same number: one
for its bytes, one on which it is told what went wrong. Whence the frames come is not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from cluster.kubelet.spdy import (
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
)

_log = logging.getLogger(__name__)
_CHUNK: Final = 65536
_DATA, _ERROR = "data", "error"
"""The kinds of streams, as their header `streamtype` names them."""
Dial = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connects to a port of the pod; raises OSError."""


class Wire(Protocol):
    """The connection that the frames travel on."""

    async def read(self) -> bytes:
        """The next bytes; none at its end."""

    async def write(self, data: bytes) -> None:
        """Send bytes; raises OSError once the other side has gone."""


@dataclasses.dataclass(slots=True)
class _Pair:
    """One connection that is forwarded."""

    streams: dict[str, int] = dataclasses.field(default_factory=dict)
    """Numbers of its streams, by their kind."""
    inflow: asyncio.StreamReader = dataclasses.field(default_factory=asyncio.StreamReader)
    """What the client sent, until the pod has read it: nothing tells spdystream to stop."""
    complete: bool = False
    """The client has sent everything."""
    carrying: asyncio.Task[None] | None = None


class Session:
    """One connection of a client, with everything that is forwarded over it."""

    def __init__(self, wire: Wire, dial: Dial) -> None:
        self._wire, self._dial = wire, dial
        self._framer = Framer()
        self._sending = asyncio.Lock()
        self._last_stream = 0
        self._pairs: dict[str, _Pair] = {}
        """By the client's request number."""

    async def run(self) -> None:
        """Forward until the client leaves."""
        try:
            with contextlib.suppress(OSError):  # the client left while it was told something
                await self._follow()
        finally:
            tasks = [pair.carrying for pair in self._pairs.values() if pair.carrying is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        try:
            while data := await self._wire.read():
                for frame in self._framer.feed(data):
                    if isinstance(frame, GoAway):
                        return
                    await self._take(frame)
        except SpdyError as error:
            _log.warning("a port-forward ends: %s", error)
            await self._send(GoAway(self._last_stream, PROTOCOL_ERROR))

    async def _take(self, frame: Frame) -> None:
        match frame:
            case SynStream():
                await self._open(frame)
            case Data(stream, data, fin):
                pair = self._of(stream)
                if pair is not None and not pair.complete:
                    _feed(pair, data, fin=fin)
            case RstStream(stream):
                pair = self._of(stream)
                if pair is not None and pair.carrying is not None:
                    pair.carrying.cancel()
                    await self._send(Data(pair.streams[_ERROR], fin=True))  # it waits for that
            case Ping(number) if number % 2:
                await self._send(frame)

    def _of(self, stream: int) -> _Pair | None:
        """The pair whose bytes a stream carries."""
        return next((one for one in self._pairs.values() if one.streams.get(_DATA) == stream), None)

    async def _open(self, frame: SynStream) -> None:
        if frame.stream % 2 == 0 or frame.stream <= self._last_stream:
            await self._send(RstStream(frame.stream, PROTOCOL_ERROR))
            return
        self._last_stream = frame.stream
        kind, request = (frame.headers.get(name, "") for name in ("streamtype", "requestid"))
        port = _port(frame.headers.get("port", ""))
        pair = self._pairs.get(request, _Pair())
        if kind not in {_DATA, _ERROR} or kind in pair.streams or not request or not port:
            await self._send(RstStream(frame.stream, REFUSED_STREAM))
            return
        self._pairs[request] = pair
        pair.streams[kind] = frame.stream
        if kind == _DATA and frame.fin:
            _feed(pair, b"", fin=True)
        await self._send(SynReply(frame.stream, {}))
        if len(pair.streams) == 2:
            pair.carrying = asyncio.create_task(self._carry(request, pair, port))

    async def _carry(self, request: str, pair: _Pair, port: int) -> None:
        """Forward one connection to its end, and tell the client of it on both streams."""
        trouble = ""
        try:
            await self._splice(pair, port)
        except OSError as error:
            trouble = f"error forwarding port {port}: {str(error) or type(error).__name__}"
        finally:
            del self._pairs[request]
        with contextlib.suppress(OSError):  # run() sees that as well
            # In this order: at the end of the data kubectl waits for the other one's.
            await self._send(Data(pair.streams[_ERROR], trouble.encode(), fin=True))
            await self._send(Data(pair.streams[_DATA], fin=True))

    async def _splice(self, pair: _Pair, port: int) -> None:
        reader, writer = await self._dial(port)
        up = asyncio.create_task(_pour(pair.inflow, writer))
        try:
            while data := await reader.read(_CHUNK):
                await self._send(Data(pair.streams[_DATA], data))
        finally:
            up.cancel()
            writer.close()
            await asyncio.gather(up, return_exceptions=True)

    async def _send(self, frame: Frame) -> None:
        async with self._sending:
            await self._wire.write(self._framer.encode(frame))


def _feed(pair: _Pair, data: bytes, *, fin: bool) -> None:
    pair.inflow.feed_data(data)
    if fin:
        pair.inflow.feed_eof()
        pair.complete = True


async def _pour(inflow: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # the pod has closed: its own side of it is what counts
        while data := await inflow.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


def _port(text: str) -> int:
    """The port that a header names; 0 where it names none."""
    return int(text) if text.isdigit() and int(text) < 1 << 16 else 0
