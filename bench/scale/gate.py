"""The operator's way to the API server: passes bytes on, and can cut every connection at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

_CHUNK: Final = 1 << 18


class Gate:
    """One port on loopback that leads to another one."""

    def __init__(self, port: int) -> None:
        """Lead to `port`; nothing is served yet."""
        self._to = port
        self._open: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[int]:
        """Serve until the block ends; yield the port."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            self.cut()

    def cut(self) -> int:
        """Cut all connections; return their number."""
        both = list(self._open)
        for one in both:
            one.transport.abort()
        return len(both) // 2

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, to = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, to}
        try:
            await asyncio.gather(_pass(reader, to), _pass(there, writer))
        finally:
            self._open -= {writer, to}
            writer.transport.abort()
            to.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof() if writer.can_write_eof() else writer.close()
