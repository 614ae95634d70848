"""The agents' open streams, by the core's number of each, and the messages that wait for a peer.

Queues are bounded, and a stale message is replaced by its successor.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import grpc

from holdfast_master.inputs import DisconnectCause
from holdfast_master.instructions import CloseSession, Send
from holdfast_wire.errors import Refusal
from holdfast_wire.messages import HeartbeatInterval, SessionResponse, StateDigest

log = logging.getLogger(__name__)

OUTBOX_LIMIT = 64
"""Messages that wait for one agent. A round needs about ten; an agent that reads is never near."""
DRAIN_SECONDS = 5.0
"""How long a stream that is being ended may take to read what is queued for it."""
COALESCED = frozenset({HeartbeatInterval, StateDigest})
"""Kinds of which only the newest matters."""

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry(Generic[Item]):
    kind: type
    item: Item


class Outbox(Generic[Item]):
    """A queue with one reader. Items of a coalesced kind replace the one that still waits."""

    def __init__(self, limit: int, coalesced: frozenset[type]) -> None:
        """Make a queue of at most `limit` items; `coalesced` kinds are in it once at most."""
        self._limit = limit
        self._coalesced = coalesced
        # Nearly always empty, ten thousand times over: a deque and an Event take 1.5 KB.
        self._entries: list[_Entry[Item]] = []
        self._reader: asyncio.Future[None] | None = None
        self._closed = False
        self.on_item: Callable[[], None] | None = None
        """Called when there is something to take, or nothing any more, where nobody awaits it."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, kind: type, item: Item) -> bool:
        """Queue `item`; False where the queue is full, and the item is not taken."""
        if kind in self._coalesced:
            stale = next((entry for entry in self._entries if entry.kind is kind), None)
            if stale is not None:
                self._entries.remove(stale)
        if len(self._entries) >= self._limit:
            return False
        self._entries.append(_Entry(kind, item))
        self._wake()
        return True

    def discard(self) -> None:
        """Drop what is queued and let the reader end at once."""
        self._entries.clear()
        self.close()

    def close(self) -> None:
        """Let the reader end once it has taken what is queued."""
        self._closed = True
        self._wake()

    def pop(self) -> Item | None:
        """The oldest item; None where there is none."""
        return self._entries.pop(0).item if self._entries else None

    async def get(self) -> Item | None:
        """The oldest item; None once the queue is closed and empty."""
        while not self._entries:
            if self._closed:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._entries.pop(0).item

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        if self.on_item is not None:
            self.on_item()


@dataclasses.dataclass(frozen=True, slots=True)
class StreamEnd:
    """Why a stream ends."""

    cause: DisconnectCause
    refusal: Refusal | None = None
    """Status for the agent; None: OK."""
    reported: bool = True


class AgentStream:
    """One agent's stream, seen from the loop."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.outbox: Outbox[SessionResponse] = Outbox(OUTBOX_LIMIT, COALESCED)
        self.ended: asyncio.Future[StreamEnd] = asyncio.get_running_loop().create_future()
        self.unwritten = 0
        """Messages for it that gRPC has not taken yet."""
        self.after_queue: StreamEnd | None = None
        """Set when the stream ends as soon as the queue is empty."""

    def end(self, ending: StreamEnd) -> None:
        """End the stream now; the first cause counts."""
        if not self.ended.done():
            self.ended.set_result(ending)

    def end_on_error(self, task: asyncio.Task[None]) -> None:
        """End the stream where the task that reads or writes it has failed."""
        if not task.cancelled() and task.exception() is not None:
            log.error("a stream failed", exc_info=task.exception(), extra={"session": self.number})
            self.end(StreamEnd(DisconnectCause.RESET))

    def end_after_queue(self, ending: StreamEnd) -> None:
        """End the stream once everything queued has been written."""
        if self.after_queue is None:
            self.after_queue = ending
            self.outbox.close()
            asyncio.get_running_loop().call_later(DRAIN_SECONDS, self.end, ending)


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

    def open(self) -> AgentStream:
        """A new session with a number that was never used before."""
        session = AgentStream(next(self._numbers))
        self._sessions[session.number] = session
        return session

    def remove(self, session: AgentStream) -> None:
        """Forget a session; what is sent to it from now on is dropped."""
        if self._sessions.pop(session.number, None) is not None:
            self._burst.less(session.unwritten)

    def written(self, session: AgentStream) -> None:
        """Note that gRPC has taken a message."""
        if session.number in self._sessions:
            session.unwritten -= 1
            self._burst.less(1)

    def send(self, instruction: Send) -> None:
        """Queue a message. An agent whose queue is full does not read: it is cut off."""
        session = self._sessions.get(instruction.session)
        if session is None or session.after_queue is not None:
            return
        response = instruction.response
        before = len(session.outbox)
        if session.outbox.put(type(response.message), response):
            grown = len(session.outbox) - before
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
