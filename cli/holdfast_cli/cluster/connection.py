"""Connection to the API server: JSON requests and forwarded ports, on its own event loop.

The commands are plain functions, and gRPC's client has threads. So the loop has a thread, which
lives as long as the connection. Every request has a deadline.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp

from holdfast_cli.cluster.kubeconfig import Access
from holdfast_cli.errors import JobNotFoundError, MasterUnreachableError

_Answer = TypeVar("_Answer")
_TIMEOUT_SECONDS: Final = 10.0
_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA, _TROUBLE = b"\0", b"\1"
_PORT_BYTES: Final = 2
"""Bytes at the start of either channel: the port, which is not part of the stream."""
_CHUNK: Final = 65536
_PING_SECONDS: Final = 20.0


class Connection:
    """One API server. Close it."""

    def __init__(self, load: Callable[[], Access]) -> None:
        """Prepare; connects at the first request.

        Args:
            load: Reads the access; again if the API server refuses its token.
        """
        self._load = load
        self.access = load()
        self.failure = ""
        """Reason of the last broken forwarding; the gRPC side only sees a closed connection."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="cluster")
        self._thread.start()
        self._session: aiohttp.ClientSession | None = None
        self._servers: dict[Path, asyncio.Server] = {}
        self._pipes: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """End every forwarding and the thread."""
        if self._thread.is_alive():
            with contextlib.suppress(TimeoutError):
                self._do(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_TIMEOUT_SECONDS)
            self._loop.close()

    def get(self, path: str) -> Any:
        """Return an object.

        Raises:
            JobNotFoundError: There is no such object.
            MasterUnreachableError: the API server does not answer, or refuses.
        """
        return self._do(self._get(path))

    def forward(self, namespace: str, pod: str, port: int, socket: Path) -> None:
        """Forward connections to `socket` to a port of a pod, until the connection closes.

        Raises:
            MasterUnreachableError: the API server does not answer, or refuses.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={port}"
        self._do(self._listen(path, socket))

    def stop_forwarding(self, socket: Path) -> None:
        """End one forwarding; open connections go on until either end closes them."""
        server = self._servers.pop(socket, None)
        if server is not None:
            self._loop.call_soon_threadsafe(server.close)

    def _do(self, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(2 * _TIMEOUT_SECONDS)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise
        except (aiohttp.ClientError, OSError) as error:
            text = str(error) or type(error).__name__
            raise MasterUnreachableError(f"cluster {self._where}: {text}") from error

    @property
    def _where(self) -> str:
        return f"{self.access.context} ({self.access.server})"

    async def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self.access.headers,
                connector=aiohttp.TCPConnector(ssl=self.access.tls),
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS),
                trust_env=True,
            )
        return self._session

    async def _get(self, path: str, *, again: bool = True) -> Any:
        session = await self._open()
        name = self.access.server_name or None
        # Not on the session: a kubelet gives no websocket to a client that takes JSON alone.
        headers = {"Accept": "application/json"}
        url = self.access.server + path
        async with session.get(url, headers=headers, server_hostname=name) as response:
            if response.status == HTTPStatus.UNAUTHORIZED and again:
                await self._reload()
                return await self._get(path, again=False)
            answer = await response.json(content_type=None)
            if response.status >= HTTPStatus.BAD_REQUEST:
                raise self._refused(response.status, answer.get("message", ""))
            return answer

    def _refused(self, code: int, message: str) -> JobNotFoundError | MasterUnreachableError:
        if code == HTTPStatus.NOT_FOUND:
            return JobNotFoundError(f"cluster {self._where}: {message}")
        if code == HTTPStatus.UNAUTHORIZED:
            message = f"it does not know you ({message}); log in to it again"
        elif code == HTTPStatus.FORBIDDEN:
            message += "; the namespace's role `edit` has every right that is needed"
        return MasterUnreachableError(f"cluster {self._where}: {message}")

    async def _reload(self) -> None:
        """Read the access again: tokens of plugins and pods are short-lived."""
        if self._session is not None:
            await self._session.close()
        self._session = None
        self.access = await asyncio.to_thread(self._load)

    async def _listen(self, path: str, socket: Path) -> None:
        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            pipe = asyncio.create_task(self._pipe(path, reader, writer))
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)

        self._servers[socket] = await asyncio.start_unix_server(serve, str(socket))

    async def _pipe(
        self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            session = await self._open()
            async with session.ws_connect(
                self.access.server + path,
                protocols=(_PROTOCOL,),
                heartbeat=_PING_SECONDS,
                max_msg_size=0,
                server_hostname=self.access.server_name or None,
            ) as there:
                await _splice(reader, writer, there)
        except (aiohttp.ClientError, OSError) as error:
            self.failure = str(error) or type(error).__name__
        finally:
            writer.close()

    async def _close(self) -> None:
        for server in self._servers.values():
            server.close()
        for pipe in tuple(self._pipes):
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        if self._session is not None:
            await self._session.close()


async def _splice(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    there: aiohttp.ClientWebSocketResponse,
) -> None:
    up = asyncio.create_task(_send(reader, there))
    try:
        await _receive(there, writer)
    finally:
        up.cancel()
        await asyncio.gather(up, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, there: aiohttp.ClientWebSocketResponse) -> None:
    while data := await reader.read(_CHUNK):
        await there.send_bytes(_DATA + data)
    await there.close()


async def _receive(there: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    started: set[bytes] = set()
    async for message in there:
        if message.type is not aiohttp.WSMsgType.BINARY:
            return
        channel, data = message.data[:1], message.data[1:]
        if channel not in started:
            started.add(channel)
            data = data[_PORT_BYTES:]
        if data and channel == _TROUBLE:
            return
        writer.write(data)
        await writer.drain()
