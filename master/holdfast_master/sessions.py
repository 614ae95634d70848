"""The agents' open streams, by the number that the core knows them by.

Belongs here: queues towards agents, and how a stream is ended from this side. Does not belong here:
reading and writing of streams (see `service_agent`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import time

import grpc

from holdfast_master.burst import Burst
from holdfast_master.inputs import DisconnectCause
from holdfast_master.instructions import CloseSession, Send
from holdfast_master.outbox import Outbox
from holdfast_wire.errors import Refusal
from holdfast_wire.messages import HeartbeatInterval, SessionResponse, StateDigest

log = logging.getLogger(__name__)

OUTBOX_LIMIT = 64
"""Messages that wait for one agent. A round needs about ten; an agent that reads is never near."""
DRAIN_SECONDS = 5.0
"""How long a stream that is being ended may take to read what is queued for it."""
COALESCED = frozenset({HeartbeatInterval, StateDigest})
"""Kinds of which only the newest matters."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """Why a stream ends."""

    cause: DisconnectCause
    refusal: Refusal | None = None
    """Status for the agent; None: OK."""
    tell_core: bool = True


class Session:
    """One agent's stream, seen from the loop."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.outbox: Outbox[SessionResponse] = Outbox(OUTBOX_LIMIT, COALESCED)
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.unwritten = 0
        """Messages for it that gRPC has not taken yet."""
        self.after_queue: Ending | None = None
        """Set when the stream ends as soon as the queue is empty."""

    def end(self, ending: Ending) -> None:
        """End the stream now; the first cause counts."""
        if not self.ended.done():
            self.ended.set_result(ending)

    def end_on_error(self, task: asyncio.Task[None]) -> None:
        """End the stream where the task that reads or writes it has failed."""
        if not task.cancelled() and task.exception() is not None:
            log.error("a stream failed", exc_info=task.exception(), extra={"session": self.number})
            self.end(Ending(DisconnectCause.RESET))

    def end_after_queue(self, ending: Ending) -> None:
        """End the stream once everything queued has been written."""
        if self.after_queue is None:
            self.after_queue = ending
            self.outbox.close()
            asyncio.get_running_loop().call_later(DRAIN_SECONDS, self.end, ending)


class SessionTable:
    """Every open session of this process."""

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}
        self._numbers = itertools.count(1)
        self._burst = Burst(time.monotonic)
        self.cut_off = 0
        """Agents that did not read."""

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self) -> Session:
        """Return a new session with a number that was never used before."""
        session = Session(next(self._numbers))
        self._sessions[session.number] = session
        return session

    def remove(self, session: Session) -> None:
        """Forget a session; what is sent to it from now on is dropped."""
        if self._sessions.pop(session.number, None) is not None:
            self._burst.less(session.unwritten)

    def written(self, session: Session) -> None:
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
        session.end(Ending(DisconnectCause.REFUSED, refusal))

    def close(self, instruction: CloseSession) -> None:
        """End a session with a status, after what is queued for it."""
        session = self._sessions.get(instruction.session)
        if session is None:
            return
        code = grpc.StatusCode[instruction.code.name]
        refusal = Refusal(code, instruction.reason, instruction.text)
        session.end_after_queue(Ending(DisconnectCause.REFUSED, refusal, tell_core=False))
