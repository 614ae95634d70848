"""A master that says what a test gives it on each Sync stream, and counts who hangs up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from holdfast_wire import channel, codec
from holdfast_wire.identity import Identity
from holdfast_wire.messages import SyncResponse
from messages import certificates

JOB = "j1"


class WokenMaster:
    """Serves `Sync` on loopback; each stream gets all of `says`, the newest also `later`."""

    def __init__(self, says: Sequence[SyncResponse]) -> None:
        """Take the words; `serve` begins."""
        self.says = list(says)
        self.later: asyncio.Queue[SyncResponse] = asyncio.Queue()
        """What is said on the open stream as soon as it lies here."""
        self.port = 0
        self.streams = 0
        """Streams that have begun."""
        self.hung_up = 0
        """Streams that the other side has ended."""

    async def _sync(self, _requests: object, context: Any) -> AsyncIterator[bytes]:
        self.streams += 1
        try:
            await context.read()
            for response in self.says:
                yield codec.encode(response)
            while True:
                yield codec.encode(await self.later.get())
        finally:
            self.hung_up += 1

    @contextlib.asynccontextmanager
    async def serve(self, folder: Path) -> AsyncIterator[WokenMaster]:
        """Serve until the block ends."""
        server = grpc.aio.server()
        handler: Any = grpc.stream_stream_rpc_method_handler(self._sync)
        served = grpc.method_handlers_generic_handler(
            "holdfast.v1.OperatorService", {"Sync": handler}
        )
        server.add_generic_rpc_handlers((served,))
        credentials = channel.server_credentials(certificates.issue(folder, master()))
        self.port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        try:
            yield self
        finally:
            await server.stop(0)


def master() -> Identity:
    """Return the master's identity by its certificate."""
    return Identity(JOB, "master")
