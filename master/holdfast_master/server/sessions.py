"""Open streams of peers: the messages that wait for each, and how each ends; the agents' by number.

Queues are bounded, and a stale message is replaced by its successor.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import grpc

from holdfast_master.inputs import DisconnectCause
from holdfast_master.instructions import CloseSession, Send
from holdfast_master.server.close_connection import finish_writing
from holdfast_master.server.rpc import Context
from holdfast_wire import codec
from holdfast_wire.errors import Refusal
from holdfast_wire.messages import HeartbeatInterval, SessionResponse, StateDigest, SyncResponse

log = logging.getLogger(__name__)

OUTBOX_LIMIT = 64
"""Messages that wait for one agent. A round needs about ten; an agent that reads is never near."""
DRAIN_SECONDS = 5.0
"""How long a stream that is being ended may take to read what is queued for it."""
COALESCED = frozenset({HeartbeatInterval, StateDigest})
"""Kinds of which only the newest matters."""

Response = TypeVar("Response", SessionResponse, SyncResponse)


@dataclasses.dataclass(frozen=True, slots=True)
class StreamEnd:
    """Why a stream ends."""

    cause: DisconnectCause
    refusal: Refusal | None = None
    """Status for the peer; None: OK."""
    reported: bool = True


class PeerStream(Generic[Response]):
    """One stream of a peer, seen from the loop.

    A task writes what is queued, and exists only while something is: agents are told something once
    a round, and ten thousand tasks that wait for it take 12 MB.
    """

    def __init__(
        self,
        context: Context,
        limit: int,
        coalesced: frozenset[type],
        number: int = 0,
        written: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Make a stream whose queue takes `limit` messages, and of `coalesced` kinds the newest.

        written: called with `number` for each message that gRPC has taken.
        """
        self.number = number
        self.ended: asyncio.Future[StreamEnd] = asyncio.get_running_loop().create_future()
        self.unwritten = 0
        """Messages for it that gRPC has not taken yet."""
        self.after_queue: StreamEnd | None = None
        """Set when the stream ends as soon as the queue is empty."""
        self._context, self._limit, self._coalesced = context, limit, coalesced
        self._written = written
        # Nearly always empty, ten thousand times over: a deque takes 700 bytes more.
        self._queue: list[Response] = []
        self._writing: asyncio.Task[None] | None = None
        self._over = False

    def __len__(self) -> int:
        """How many messages are queued."""
        return len(self._queue)

    def put(self, response: Response) -> bool:
        """Queue a message; False where the queue is full, and the message is not taken."""
        kind = type(response.message)
        if kind in self._coalesced:
            self._queue = [waiting for waiting in self._queue if type(waiting.message) is not kind]
        if len(self._queue) >= self._limit:
            return False
        self._queue.append(response)
        self._wake()
        return True

    def end(self, ending: StreamEnd) -> None:
        """End the stream now; the first cause counts."""
        if not self.ended.done():
            self.ended.set_result(ending)

    def end_on_error(self, task: asyncio.Task[None]) -> None:
        """End the stream where a task that works for it has failed."""
        if not task.cancelled() and task.exception() is not None:
            log.error("a stream failed", exc_info=task.exception(), extra={"session": self.number})
            self.end(StreamEnd(DisconnectCause.RESET))

    def end_after_queue(self, ending: StreamEnd) -> None:
        """End the stream once everything queued has been written."""
        if self.after_queue is None:
            self.after_queue = ending
            self._wake()
            asyncio.get_running_loop().call_later(DRAIN_SECONDS, self.end, ending)

    async def listen(self, read: Coroutine[Any, Any, None]) -> StreamEnd:
        """Run `read` until the stream ends; return why it ends."""
        reading = asyncio.create_task(read)
        try:
            reading.add_done_callback(self.end_on_error)
            return await self.ended
        finally:
            reading.cancel()

    def abandon(self) -> None:
        """Write nothing more; what is under way is given up."""
        self._over = True
        self.end(StreamEnd(DisconnectCause.RESET))
        if self._writing is not None:
            self._writing.cancel()

    async def finish(self) -> None:
        """Drop what is queued, and wait for the write that is under way: see `finish_writing`."""
        self._over = True
        self._queue.clear()
        if self._writing is not None:
            await finish_writing(self._writing, self._context)

    def _wake(self) -> None:
        """Something has been queued, or nothing more will be."""
        if self._writing is None and not self._over:
            self._writing = asyncio.create_task(self._write())
            self._writing.add_done_callback(self._wrote)

    def _wrote(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        self.end_on_error(task)
        # Between the task's last look at the queue and this call something may have come.
        closing = self.after_queue is not None and not self.ended.done()
        if not task.cancelled() and (self._queue or closing):
            self._wake()

    async def _write(self) -> None:
        while self._queue:
            try:
                await self._context.write(codec.encode(self._queue.pop(0)))
            except grpc.aio.BaseError:
                self.end(StreamEnd(DisconnectCause.RESET))
                return
            self._written(self.number)
        if self.after_queue is not None:
            self.end(self.after_queue)


AgentStream = PeerStream[SessionResponse]


LOGGED_FROM = 100
"""Messages of one burst: fewer are no news."""


class Burst:
    """The messages that wait for agents, from the first until none waits any more."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with none; ``clock``: monotonic, s."""
        self._clock = clock
        self._waiting = self._messages = 0
        self._began = 0.0

    def more(self, messages: int) -> None:
        """So many more wait."""
        if not self._messages:
            self._began = self._clock()
        self._waiting += messages
        self._messages += messages

    def less(self, messages: int) -> None:
        """So many were taken by gRPC, or have nobody to go to any more."""
        self._waiting -= messages
        if self._waiting:
            return
        if self._messages >= LOGGED_FROM:
            passed = round(self._clock() - self._began, 3)
            log.info("agents are told", extra={"messages": self._messages, "seconds": passed})
        self._messages = 0


class SessionTable:
    """Every open session of this process."""

    def __init__(self) -> None:
        self._sessions: dict[int, AgentStream] = {}
        self._numbers = itertools.count(1)
        self._burst = Burst(time.monotonic)
        self.cut_off = 0
        """Agents that did not read."""

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, context: Context) -> AgentStream:
        """A new session with a number that was never used before."""
        number = next(self._numbers)
        session = AgentStream(context, OUTBOX_LIMIT, COALESCED, number, self._note_written)
        self._sessions[number] = session
        return session

    def remove(self, session: AgentStream) -> None:
        """Forget a session; what is sent to it from now on is dropped."""
        if self._sessions.pop(session.number, None) is not None:
            self._burst.less(session.unwritten)

    def _note_written(self, number: int) -> None:
        if number in self._sessions:
            self._sessions[number].unwritten -= 1
            self._burst.less(1)

    def send(self, instruction: Send) -> None:
        """Queue a message. An agent whose queue is full does not read: it is cut off."""
        session = self._sessions.get(instruction.session)
        if session is None or session.after_queue is not None:
            return
        before = len(session)
        if session.put(instruction.response):
            grown = len(session) - before
            session.unwritten += grown
            self._burst.more(grown)
            return
        self.cut_off += 1
        text = f"{OUTBOX_LIMIT} messages were waiting; the agent does not read its stream"
        log.warning("cut off: %s", text, extra={"session": session.number})
        refusal = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER", text)
        session.end(StreamEnd(DisconnectCause.REFUSED, refusal))

    def close(self, instruction: CloseSession) -> None:
        """End a session with a status, after what is queued for it."""
        session = self._sessions.get(instruction.session)
        if session is None:
            return
        code = grpc.StatusCode[instruction.code.name]
        refusal = Refusal(code, instruction.reason, instruction.text)
        session.end_after_queue(StreamEnd(DisconnectCause.REFUSED, refusal, reported=False))
