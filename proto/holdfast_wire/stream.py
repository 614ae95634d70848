"""One bidirectional gRPC stream to a job's master, opened again whenever it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import grpc

from holdfast_wire import channel, codec, errors

TRANSIENT: Final = (
    grpc.RpcError,
    grpc.aio.UsageError,
    grpc.aio.InternalError,
    asyncio.InvalidStateError,
    OSError,
    channel.CredentialsError,
)
"""Errors that end a stream; all of them lead to another try."""

Response = TypeVar("Response")
Response_contra = TypeVar("Response_contra", contravariant=True)


class SilentError(TimeoutError):
    """The stream was open, and its first message did not come in time."""


class AbandonedError(OSError):
    """This side's gRPC has cancelled the call."""


@dataclass(frozen=True, slots=True)
class StreamEnding:
    """End of a try."""

    reason: str
    """Text for people."""
    endpoint: str
    """Address of the try; empty: there was none yet."""
    greeted: bool = False
    """True: a message of the other side was accepted."""
    error: BaseException | None = None
    """None: the other side ended the stream in order, this side hung up, or there was no
    endpoint."""

    @property
    def refused(self) -> bool:
        """True if no connection was possible, or the answer came from something else."""
        return isinstance(self.error, ConnectionError)

    @property
    def code(self) -> grpc.StatusCode | None:
        """GRPC's status; None if the call did not begin."""
        return errors.read(self.error).code if isinstance(self.error, grpc.RpcError) else None


class Peer(Protocol[Response_contra]):
    """Owner of a stream: it knows the messages. An exception in any method ends `run`."""

    def opening(self) -> Iterable[object]:
        """The first requests of a new stream, as twins."""

    def received(self, response: Response_contra) -> bool:
        """Take a message; False: hang up.

        Raises:
            ConnectionError: the stream is of no use; it ends as if it had been refused.
        """

    def unreadable(self, error: codec.WireError) -> None:
        """Note a dropped message of a newer release; may raise, as `received` does."""

    def unsendable(self, error: codec.WireError) -> None:
        """Note a request that was left out, because the wire does not accept its values."""

    def ended(self, end: StreamEnding) -> None:
        """Note the end of a try; the next one follows after a pause."""


class Pace(Protocol):
    """Patience of a stream's owner. `attempt` counts failed tries since a greeted one."""

    def connect_seconds(self, attempt: int) -> float:
        """The longest time for one attempt to connect, its handshake included, s."""

    def greeting_seconds(self) -> float | None:
        """The longest time until the first message, s; `send` drops everything before that.

        None: no limit, and requests are sent from the beginning.
        """

    def pause(self, attempt: int, *, refused: bool) -> float:
        """The time until the next try, s; `refused` as in `StreamEnding`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    """Address of the other side, and the credentials to reach it."""

    endpoint: Callable[[], str | None]
    """Returns host:port as of now; None or empty: not known yet. Called for each try."""
    tls_dir: Callable[[], Path]
    """Returns the directory of this side's certificate; called for each try."""
    options: Callable[[float], channel.Options]
    """Returns the channel options for a longest attempt to connect, s."""


class SendQueue:
    """Queue of requests to be written."""

    def __init__(
        self, limit: int | None = None, replaces: Callable[[Any, Any], bool] | None = None
    ) -> None:
        """Make an empty queue of at most `limit` requests; None: no limit.

        replaces: returns True if a new request (second) makes the newest waiting one (first) void.
        """
        self._limit = limit
        self._replaces = replaces
        self._queue: deque[object] = deque()
        self._ready = asyncio.Event()
        self._closed = False

    def put(self, request: object) -> bool:
        """Add a request; False: too many wait."""
        queue = self._queue
        if queue and self._replaces is not None and self._replaces(queue[-1], request):
            queue.pop()
        elif self._limit is not None and len(queue) >= self._limit:
            return False
        queue.append(request)
        self._ready.set()
        return True

    def close(self) -> None:
        """Take no more requests: waiting ones are still sent."""
        self._closed = True
        self._ready.set()

    async def get(self) -> Any:
        """Wait for the next request; None at the end."""
        while not self._queue:
            if self._closed:
                return None
            self._ready.clear()
            await self._ready.wait()
        return self._queue.popleft()


class Stream(Generic[Response]):
    """Stream that is renewed until `close`, or until the task of `run` is cancelled."""

    def __init__(
        self,
        method: str,
        response: type[Response],
        dial: Dial,
        peer: Peer[Response],
        pace: Pace,
        outbox: Callable[[], SendQueue] = SendQueue,
        beside: Callable[[grpc.aio.Channel], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Make a stream of a method, such as /holdfast.v1.AgentService/Session; it is not open yet.

        outbox: makes the queue of a new stream. beside: runs on the same channel from the first
        message until the stream ends.
        """
        self._method = method
        self._response = response
        self._dial = dial
        self._peer = peer
        self._pace = pace
        self._new_outbox = outbox
        self._beside = beside
        self._outbox: SendQueue | None = None
        """Queue of the open stream, once it takes requests."""
        self._down = asyncio.Event()
        self._hurry = asyncio.Event()
        """Set: the next try need not wait."""
        self._attempt = 0
        self._greeted = False
        self.closing = False
        """True: `close` was called."""

    def send(self, request: object) -> bool:
        """Queue a request, if there is a stream; without one the next stream's opening has it all.

        False: too many requests waited, and a new stream replaces this one.
        """
        outbox = self._outbox
        if outbox is None or outbox.put(request):
            return True
        self._outbox = None
        outbox.close()
        return False

    async def run(self) -> None:
        """Open streams until `close`; may be called again after it raised.

        Raises:
            Exception: Any error of `peer`, except those that mean a broken connection.
        """
        while not self.closing:
            self._greeted = False
            self._hurry.clear()  # here: a hint during the try is not lost
            try:
                end = await self._try(self._dial.endpoint() or "")
            finally:
                self._attempt = 0 if self._greeted else self._attempt + 1
            self._peer.ended(end)
            if not self.closing:
                await self._rest(self._pace.pause(self._attempt, refused=end.refused))

    def hurry(self) -> None:
        """End the pause before the next try: the other side may be there now."""
        self._hurry.set()

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    async def close(self, timeout_seconds: float) -> None:
        """Send waiting requests and end the stream within this time; then await or cancel `run`."""
        self.closing = True
        outbox = self._outbox
        if outbox is None:
            return
        self._down.clear()
        outbox.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._down.wait(), timeout_seconds)

    async def _try(self, endpoint: str) -> StreamEnding:
        """Open one stream, and return its end."""
        if not endpoint:
            return StreamEnding("it has no address yet", endpoint)
        try:
            reason = await self._one_stream(endpoint)
        except TRANSIENT as error:
            return StreamEnding(describe(error), endpoint, self._greeted, error)
        return StreamEnding(reason, endpoint, self._greeted)

    async def _one_stream(self, endpoint: str) -> str:
        limit = self._pace.connect_seconds(self._attempt)
        credentials = channel.channel_credentials(self._dial.tls_dir())
        options = self._dial.options(limit)
        async with grpc.aio.secure_channel(endpoint, credentials, options) as link:
            await connected(link, 2 * limit)
            open_stream: Any = link.stream_stream(self._method)
            call, outbox = open_stream(), self._new_outbox()
            # A task of our own: a task that gRPC makes for an iterator is never awaited.
            writing = asyncio.create_task(self._write(call, outbox), name="stream-writer")
            writing.add_done_callback(lambda task: _give_up(task, call))
            tasks = [writing]
            try:
                return await self._read(call, link, outbox, tasks)
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                raise _why(writing) from None
            finally:
                self._outbox = None
                self._down.set()
                for task in tasks:
                    task.cancel()
                # A write that crossed the end of the stream fails in one of several ways.
                await asyncio.gather(*tasks, return_exceptions=True)
                call.cancel()

    async def _read(
        self, call: Any, link: grpc.aio.Channel, outbox: SendQueue, tasks: list[asyncio.Task[None]]
    ) -> str:
        data = await self._first(call)
        if self._pace.greeting_seconds() is not None and data is not grpc.aio.EOF:
            self._outbox = outbox
        while data is not grpc.aio.EOF:
            if not self._take(data):
                return "this side hung up"
            if self._beside is not None and len(tasks) == 1:
                tasks.append(asyncio.create_task(self._beside(link), name="beside-stream"))
            data = await call.read()
        await _raise_status(call)
        return "the stream ended"

    async def _first(self, call: Any) -> Any:
        patience = self._pace.greeting_seconds()
        try:
            async with asyncio.timeout(patience):
                return await call.read()
        except TimeoutError as error:
            raise SilentError(f"no answer within {patience:.0f} s") from error

    def _take(self, data: bytes) -> bool:
        try:
            response = codec.decode(self._response, data)
        except codec.WireError as error:
            self._peer.unreadable(error)
            return True
        if not self._peer.received(response):
            return False
        self._greeted = True
        return True

    async def _write(self, call: Any, outbox: SendQueue) -> None:
        if self._pace.greeting_seconds() is None:
            self._outbox = outbox
        for request in self._peer.opening():
            await self._put(call, request)
        while (request := await outbox.get()) is not None:
            await self._put(call, request)
        await call.done_writing()

    async def _put(self, call: Any, request: object) -> None:
        try:
            data = codec.encode(request)
        except codec.WireError as error:
            self._peer.unsendable(error)
            return
        await call.write(data)


async def connected(link: grpc.aio.Channel, limit: float) -> None:
    """Wait until the channel is connected, at most for `limit` s.

    Raises:
        ConnectionError: the connection is refused, or not there in time.
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


def describe(error: BaseException) -> str:
    """The end of a stream for people: status code and details, or the error's own text."""
    if isinstance(error, grpc.RpcError):
        refusal = errors.read(error)
        return f"{refusal.code.name}: {refusal.text}"
    return str(error)


async def _raise_status(call: Any) -> None:
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            code,
            await call.initial_metadata(),
            await call.trailing_metadata(),
            details=await call.details(),
        )


def _give_up(writing: asyncio.Task[None], call: Any) -> None:
    """End a call whose writer has failed: no request could be sent on it any more."""
    if not writing.cancelled() and writing.exception() is not None and not call.done():
        call.cancel()


def _why(writing: asyncio.Task[None]) -> BaseException:
    """The reason why a call was cancelled, while this task was not."""
    failed = writing.exception() if writing.done() and not writing.cancelled() else None
    return failed or AbandonedError("the stream was given up on this side")


def _is_cancelled() -> bool:
    """Whether this task was cancelled, rather than a call in it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
