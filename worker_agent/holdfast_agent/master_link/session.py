"""The stream to the master: fences of both directions, repeated reports, the stream's end.

The meaning of a message is `agent`'s. Imports grpc: not to be imported before the zygote runs.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

import grpc

from holdfast_agent.config.settings import Settings
from holdfast_agent.errors import AgentRefusedError
from holdfast_agent.policies import liveness, master_messages
from holdfast_agent.policies.master_messages import Statements
from holdfast_wire import __version__, channel, codec, stream
from holdfast_wire.messages import Fence, Heartbeat, Hello, SessionRequest, SessionResponse, Welcome

log = logging.getLogger(__name__)

METHOD = "/holdfast.v1.AgentService/Session"
LONGEST_WELCOME_SECONDS = 20.0
"""The Welcome's deadline doubles up to this while none comes; for a crowd it may be longer."""
COMPLAIN_SECONDS = 10.0
"""The same reason for a failed connection is logged this often, s."""
MAX_QUEUE = 1_000
"""Messages that wait while the master does not read; with more, the stream is given up."""
PERMANENT = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
"""Refusals that would come again at another try."""


class Listener(Protocol):
    """User of the stream."""

    def hello(self) -> Hello:
        """Return the first message of a stream."""

    def on_message(self, message: Any, round_number: int) -> None:
        """Act on a message that its fence allows (first a Welcome, or a Leave).

        round_number: for an assignment, the newest round before it; for others, their fence's.
        """

    def on_down(self, reason: str) -> None:
        """Note the end of a stream that had a Welcome."""


class MasterSession:
    """One agent's stream, renewed until `close`."""

    def __init__(
        self, settings: Settings, endpoint: Callable[[], str | None], jitter: random.Random
    ) -> None:
        """Connect to nothing before `run`.

        endpoint: Returns the master's host:port as of now; None: it is still starting.
        jitter: Spreads reconnects.
        """
        self.accepted = Fence()
        """Newest fence that was accepted."""
        self.statements = Statements()
        self._listener: Listener
        """The stream's user, from `run` on."""
        self._jitter = jitter
        self._complained = ("", 0.0)
        self.connected = False
        """True: a Welcome (or a Leave in its place) came and the stream has not ended since."""
        self._patience = liveness.WELCOME_SECONDS
        self._crowd = 1
        """Largest number of agents of the job, as the last master said."""
        way = stream.Dial(
            endpoint=endpoint,
            tls_dir=lambda: settings.tls_dir,
            options=lambda limit: channel.agent_channel_options(settings.job_uid, limit),
        )
        self._stream = stream.Stream(METHOD, SessionResponse, way, self, self, outbox)

    @property
    def closing(self) -> bool:
        """True: `close` was called."""
        return self._stream.closing

    def report(self, message: Any, round_number: int | None = None) -> None:
        """Send a message; `round_number`: the round that it is about, if it is about workers.

        Without a stream it is dropped: the next hello has the state, and what would be missing
        there is repeated.
        """
        self.statements.note(message, round_number or 0, time.monotonic())
        number = self.accepted.round if round_number is None else round_number
        fence = dataclasses.replace(self.accepted, round=number)
        self._send(SessionRequest(fence=fence, message=message))

    def repeat(self, *, ending: int = 0) -> None:
        """Send what a master that has just welcomed this agent may not know.

        ending: round of which a process has ended, see `Statements.again`.
        """
        for request in self.statements.again(self.accepted, time.monotonic(), ending=ending):
            self._send(request)

    def _send(self, request: SessionRequest) -> None:
        if not self._stream.send(request):
            log.warning("%d messages wait for the master: starting a new stream", MAX_QUEUE)

    async def run(self, listener: Listener) -> None:
        """Connect again and again until `close`.

        Raises AgentRefusedError: the master refused this agent for good.
        """
        self._listener = listener
        await self._stream.run()

    async def close(self, timeout_seconds: float) -> None:
        """Send the queued messages and end the stream; the caller then awaits or cancels `run`."""
        await self._stream.close(timeout_seconds)

    # --- messages: `stream.Peer` ------------------------------------------------------------------

    def opening(self) -> list[SessionRequest]:
        """Return the hello."""
        return [SessionRequest(fence=self.accepted, message=self._listener.hello())]

    def received(self, response: SessionResponse) -> bool:
        """Hand a message on; the first one must open the stream."""
        if self.connected:
            self._take(response)
            return True
        message = response.message
        if not master_messages.may_open(message):
            raise ConnectionError(f"the master's first message is a {type(message).__name__}")
        if isinstance(message, Welcome):
            self._crowd = message.max_replicas
            self._patience = liveness.welcome_deadline(self._crowd)
        self.connected = True
        if not self._take(response):
            self.connected = False
            raise ConnectionError("its first message was not accepted (an older master?)")
        return True

    def _take(self, response: SessionResponse) -> bool:
        """Hand a message on if its fence allows; return whether it does."""
        judged = master_messages.judge(self.accepted, response)
        if judged.refused:
            name = type(response.message).__name__
            log.warning("%s of the master dropped: %s", name, judged.refused)
            return False
        self.accepted = judged.accepted
        self._listener.on_message(response.message, judged.round)
        return True

    def unreadable(self, error: codec.WireError) -> None:
        """Drop a message, unless it should have opened the stream."""
        log.warning("a message of the master was dropped: %s", error)
        if not self.connected:
            raise ConnectionError("the master's first message could not be read")

    def unsendable(self, error: codec.WireError) -> None:
        """Leave a message out: the others still count."""
        log.error("the master is not told: %s", error)

    def ended(self, end: stream.StreamEnding) -> None:
        """Note the end of a stream; raises AgentRefusedError if another try would be in vain."""
        if end.code in PERMANENT:
            raise AgentRefusedError(end.reason) from end.error
        if self.connected:
            self.connected = False
            self._listener.on_down(end.reason)
            return
        reason = end.reason
        if isinstance(end.error, stream.SilentError):
            reason = f"no Welcome within {self._patience:.0f} s"
            self._patience = longer(self._patience)
        if end.endpoint:
            self._complain(end.endpoint, reason)

    # --- patience: `stream.Pace` ------------------------------------------------------------------

    def connect_seconds(self, attempt: int) -> float:
        """Return the longest time for an attempt to connect, s."""
        return liveness.connect_deadline(self._crowd, attempt)

    def greeting_seconds(self) -> float:
        """Return the longest time until the Welcome, s."""
        return self._patience

    def pause(self, attempt: int, *, refused: bool) -> float:
        """Return the time until the next try, s."""
        share = self._jitter.random()
        return liveness.reconnect_pause(attempt, share, refused=refused, crowd=self._crowd)

    def _complain(self, endpoint: str, reason: str) -> None:
        known, said_at = self._complained
        now = time.monotonic()
        if reason != known or now - said_at >= COMPLAIN_SECONDS:
            self._complained = (reason, now)
            log.warning("no master at %s yet: %s", endpoint, reason)


def identity(settings: Settings, agent_id: str, address: str) -> Hello:
    """Return the part of a hello that every agent has, and that never changes."""
    return Hello(
        job_uid=settings.job_uid,
        node_rank=settings.node_rank,
        pod_uid=settings.pod_uid or agent_id,
        agent_id=agent_id,
        agent_pid=os.getpid(),
        host=socket.gethostname(),
        address=address,
        local_world_size=settings.launch.local_world_size,
        version=__version__,
        max_restarts=settings.launch.max_restarts,
    )


def outbox() -> stream.SendQueue:
    """Return the queue of a new stream: a newer heartbeat replaces an older one in it."""
    return stream.SendQueue(
        MAX_QUEUE,
        lambda last, new: (
            isinstance(last.message, Heartbeat) and isinstance(new.message, Heartbeat)
        ),
    )


def longer(patience: float) -> float:
    """Return the deadline for the next Welcome, after one that did not come in time, s."""
    return max(patience, min(2 * patience, LONGEST_WELCOME_SECONDS))
