"""The stream to the master: connect, say hello, carry messages, reconnect.

What a message means is `agent`'s. Imports grpc, so it must not be imported before the zygote runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import grpc

from holdfast_agent.decide import hearing, reconnect
from holdfast_agent.decide.hearing import Opening
from holdfast_agent.errors import RefusedError
from holdfast_wire import channel, codec, errors
from holdfast_wire.messages import Heartbeat, SessionRequest, SessionResponse, Welcome
from holdfast_wire.v1 import agent_pb2_grpc

log = logging.getLogger(__name__)

LONGEST_WELCOME_SECONDS = 20.0
"""The Welcome's deadline doubles up to this while none comes; a crowd's may be longer already."""
COMPLAIN_SECONDS = 10.0
"""The same reason for a failed connection is logged this often."""
MAX_QUEUE = 1_000
"""Messages that wait while the master does not read; more means that the stream is useless."""
TRANSIENT = (
    grpc.RpcError,
    grpc.aio.UsageError,
    grpc.aio.InternalError,
    asyncio.InvalidStateError,
    OSError,
    channel.CredentialsError,
)
"""How a stream can end; all of them lead to another try."""
PERMANENT = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
"""Refusals that another try would meet again."""


class Listener(Protocol):
    """Who uses the stream."""

    def hello(self) -> SessionRequest:
        """Return the first message of a stream."""

    def on_response(self, response: SessionResponse) -> bool:
        """A message came (first a Welcome, or a Leave); return whether it was accepted."""

    def on_down(self, reason: str) -> None:
        """The stream ended after a Welcome."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    """Where the master is and how to reach it."""

    endpoint: Callable[[], str | None]
    """host:port right now; None: not known yet (a master that is still starting)."""
    job_uid: str
    tls_dir: Path


class Outbox:
    """Messages to send. A heartbeat that waits is replaced by a newer one."""

    def __init__(self) -> None:
        self._queue: deque[SessionRequest] = deque()
        self._ready = asyncio.Event()
        self.closed = False

    def put(self, request: SessionRequest) -> bool:
        """Add a message; False when too many wait."""
        queue = self._queue
        if isinstance(request.message, Heartbeat):
            if queue and isinstance(queue[-1].message, Heartbeat):
                queue.pop()
        elif len(queue) >= MAX_QUEUE:
            return False
        queue.append(request)
        self._ready.set()
        return True

    def close(self) -> None:
        """No more messages: what waits is still sent."""
        self.closed = True
        self._ready.set()

    async def get(self) -> SessionRequest | None:
        """Wait for the next message; None at the end."""
        while not self._queue:
            if self.closed:
                return None
            self._ready.clear()
            await self._ready.wait()
        return self._queue.popleft()


class Session:
    """One agent's stream, renewed until `close`."""

    def __init__(self, dial: Dial, listener: Listener, jitter: random.Random) -> None:
        """Connect by `dial`; `jitter` spreads reconnects."""
        self._dial = dial
        self._listener = listener
        self._jitter = jitter
        self._outbox: Outbox | None = None
        self.closing = False
        """`close` was called."""
        self._down = asyncio.Event()
        self._complained = ("", 0.0)
        self.connected = False
        """A Welcome (or a Leave in its place) came and the stream has not ended since."""
        self.reconnects = 0
        """Streams that ended after a Welcome."""
        self._patience = reconnect.WELCOME_SECONDS
        self._crowd = 1
        """Most agents of the job, as the last master said."""
        self.malformed = 0
        """Messages that could not be read."""

    def send(self, request: SessionRequest) -> None:
        """Send soon; dropped without a stream (state is told again by the next hello)."""
        outbox = self._outbox
        if outbox is not None and not outbox.put(request):
            log.warning("%d messages wait for the master: starting a new stream", MAX_QUEUE)
            self._outbox = None
            outbox.close()

    async def run(self) -> None:
        """Connect again and again until `close`.

        Raises:
            RefusedError: the master refused this agent for good.
        """
        attempt = 0
        while not self.closing:
            welcomed = refused = False
            try:
                welcomed = await self._one_stream(attempt)
            except TRANSIENT as error:
                welcomed, refused = self._went_down(error), isinstance(error, ConnectionError)
            attempt = 0 if welcomed else attempt + 1
            if not self.closing:
                share, crowd = self._jitter.random(), self._crowd
                pause = reconnect.delay(attempt, share, refused=refused, crowd=crowd)
                await asyncio.sleep(pause)

    async def close(self, timeout_seconds: float) -> None:
        """Send what waits and end the stream; the caller then awaits or cancels `run`."""
        self.closing = True
        outbox = self._outbox
        if outbox is None:
            return
        self._down.clear()
        outbox.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._down.wait(), timeout_seconds)

    async def _one_stream(self, attempt: int) -> bool:
        endpoint = self._dial.endpoint()
        if endpoint is None:
            return False
        limit = reconnect.connect_deadline(self._crowd, attempt)
        options = channel.agent_channel_options(self._dial.job_uid, limit)
        credentials = channel.channel_credentials(self._dial.tls_dir)
        async with grpc.aio.secure_channel(endpoint, credentials, options) as link:
            await connected(link, 2 * limit)
            call = agent_pb2_grpc.AgentServiceStub(link).Session()
            outbox = Outbox()
            writer = asyncio.create_task(self._write(call, outbox))
            try:
                await self._read(call, outbox)
            finally:
                self._outbox = None
                self._down.set()
                writer.cancel()
                # A write that crossed the end of the stream fails in one of several ways.
                await asyncio.gather(writer, return_exceptions=True)
                call.cancel()
        return self._went_down(None)

    async def _read(self, call: Any, outbox: Outbox) -> None:
        outbox.put(self._listener.hello())
        try:
            async with asyncio.timeout(self._patience):
                first = await call.read()
        except TimeoutError as error:
            text = f"no Welcome within {self._patience:.0f} s"
            self._patience = longer(self._patience)
            raise TimeoutError(text) from error
        if first is grpc.aio.EOF:
            await self._raise_status(call)
            return
        self._begin(self._decode(first), outbox)
        while (message := await call.read()) is not grpc.aio.EOF:
            response = self._decode(message)
            if response is not None:
                self._listener.on_response(response)
        await self._raise_status(call)

    def _begin(self, first: SessionResponse | None, outbox: Outbox) -> None:
        message = None if first is None else first.message
        if first is None or hearing.opening(message) is Opening.AMISS:
            raise ConnectionError(f"the master's first message is a {type(message).__name__}")
        self._outbox = outbox
        if isinstance(message, Welcome):
            self._crowd = message.max_replicas
            self._patience = reconnect.welcome_deadline(self._crowd)
        self.connected = True
        if not self._listener.on_response(first):
            self._outbox = None
            self.connected = False
            raise ConnectionError("its first message was not accepted (an older master?)")

    def _decode(self, message: Any) -> SessionResponse | None:
        try:
            response: SessionResponse = codec.from_proto(message)
        except codec.WireError as error:
            self.malformed += 1
            log.warning("a message of the master was dropped: %s", error)
            return None
        return response

    async def _write(self, call: Any, outbox: Outbox) -> None:
        while (request := await outbox.get()) is not None:
            await call.write(codec.to_proto(request))
        await call.done_writing()

    async def _raise_status(self, call: Any) -> None:
        code = await call.code()
        if code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                code,
                await call.initial_metadata(),
                await call.trailing_metadata(),
                details=await call.details(),
            )

    def _went_down(self, error: BaseException | None) -> bool:
        """Note the end of a stream; return whether it had been welcomed."""
        reason, permanent = _describe(error)
        if permanent:
            raise RefusedError(reason) from error
        if self.connected:
            self.connected = False
            self.reconnects += 1
            self._listener.on_down(reason)
            return True
        self._complain(reason)
        return False

    def _complain(self, reason: str) -> None:
        known, said_at = self._complained
        now = time.monotonic()
        if reason != known or now - said_at >= COMPLAIN_SECONDS:
            self._complained = (reason, now)
            log.warning("no master at %s yet: %s", self._dial.endpoint(), reason)


def longer(patience: float) -> float:
    """Return the deadline of the next Welcome after one that did not come in time, s."""
    return max(patience, min(2 * patience, LONGEST_WELCOME_SECONDS))


async def connected(link: grpc.aio.Channel, limit: float) -> None:
    """Wait until the channel is connected, for `limit` seconds at most.

    Raises:
        ConnectionError: it is refused, or not there in time.
    """
    try:
        async with asyncio.timeout(limit):
            state = link.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    raise ConnectionError("the connection was refused or broke")
                await link.wait_for_state_change(state)
                state = link.get_state(try_to_connect=True)
    except TimeoutError as error:
        text = f"no connection within {limit:g} s"
        raise ConnectionError(text) from error


def _describe(error: BaseException | None) -> tuple[str, bool]:
    """Return the reason for people, and whether another try is pointless."""
    if error is None:
        return "the stream ended", False
    if isinstance(error, grpc.RpcError):
        refusal = errors.read(error)
        return f"{refusal.code.name}: {refusal.text}", refusal.code in PERMANENT
    return str(error), False
