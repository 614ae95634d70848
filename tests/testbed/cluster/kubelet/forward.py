"""`/portForward` of a node's server: three ways in for the ports of a pod.

kubectl speaks SPDY, inside a websocket where it can and bare where it must (or is told to by
KUBECTL_PORT_FORWARD_WEBSOCKETS=false); our own command line has one websocket for each connection.
"""

from __future__ import annotations

import asyncio
import http
import struct
from typing import Final, cast

from aiohttp import WSMsgType, web
from aiohttp.http import WebSocketReader

from cluster.kubelet.refusals import ports
from cluster.kubelet.streams import Dial, Session

_PROTOCOL: Final = "portforward.k8s.io"
_UPGRADE: Final = "SPDY/3.1"
_TUNNEL: Final = f"{_UPGRADE}+{_PROTOCOL}"
_CHANNELS: Final = "v4.channel.k8s.io"
_VERSION_HEADER: Final = "X-Stream-Protocol-Version"
_DATA, _TROUBLE = b"\0", b"\1"
_CHUNK: Final = 65536


async def forward(request: web.Request, dial: Dial) -> web.StreamResponse:
    """Serve one request, in whichever way it asks for, until the client leaves."""
    offered = request.headers.get("Sec-WebSocket-Protocol", "")
    if _TUNNEL in offered:
        return await _tunnel(request, dial)
    if _CHANNELS in offered:
        return await _channels(request, dial)
    if request.headers.get("Upgrade", "").upper() != _UPGRADE:
        raise web.HTTPBadRequest(text=f"this kubelet forwards by {_UPGRADE} or {_CHANNELS} only")
    if _PROTOCOL not in request.headers.getall(_VERSION_HEADER, []):
        raise web.HTTPForbidden(text=f"this kubelet knows {_VERSION_HEADER}: {_PROTOCOL} only")
    return await _bare(request, dial)


class _Connection:
    """A connection that speaks HTTP no more."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response
        self._reader = asyncio.StreamReader()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take in bytes; aiohttp takes this for its own reader of websockets."""
        self._reader.feed_data(data)
        return False, b""

    def feed_eof(self) -> None:
        """Take in the end."""
        self._reader.feed_eof()

    async def read(self) -> bytes:
        """The next bytes; none at its end."""
        return await self._reader.read(_CHUNK)

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        await self._response.write(data)


async def _bare(request: web.Request, dial: Dial) -> web.StreamResponse:
    words = {"Connection": "Upgrade", "Upgrade": _UPGRADE, _VERSION_HEADER: _PROTOCOL}
    response = web.StreamResponse(status=http.HTTPStatus.SWITCHING_PROTOCOLS, headers=words)
    response.force_close()
    connection = _Connection(response)
    request.protocol.set_parser(cast("WebSocketReader", connection))
    await response.prepare(request)
    await Session(connection, dial).run()
    return response


class _Messages:
    """The messages of a websocket as one stream of bytes."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket

    async def read(self) -> bytes:
        """The next bytes; none at its end."""
        async for message in self._socket:
            if message.type is WSMsgType.BINARY and message.data:
                return bytes(message.data)
        return b""

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        await self._socket.send_bytes(data)


async def _tunnel(request: web.Request, dial: Dial) -> web.StreamResponse:
    socket = web.WebSocketResponse(protocols=[_TUNNEL], max_msg_size=0, compress=False)
    await socket.prepare(request)
    await Session(_Messages(socket), dial).run()
    await socket.close()
    return socket


async def _channels(request: web.Request, dial: Dial) -> web.StreamResponse:
    port = ports(request.query.getall("port", []))[0]
    socket = web.WebSocketResponse(protocols=[_CHANNELS], max_msg_size=0)
    await socket.prepare(request)
    for channel in (_DATA, _TROUBLE):
        await socket.send_bytes(channel + struct.pack("<H", port))
    try:
        reader, writer = await dial(port)
    except OSError as error:
        await socket.send_bytes(_TROUBLE + str(error).encode())
        await socket.close()
        return socket
    back = asyncio.create_task(_answer(socket, reader))
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data[:1] == _DATA:
            writer.write(message.data[1:])
            await writer.drain()
    writer.close()
    back.cancel()
    return socket


async def _answer(socket: web.WebSocketResponse, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(_CHUNK):
        await socket.send_bytes(_DATA + data)
    await socket.close()
