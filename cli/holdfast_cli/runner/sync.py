"""The runner's end of OperatorService.Sync: sends spec and pods to the master, gets decisions.

Belongs here: the first messages of a stream, and passing decisions on. `holdfast_wire.stream` keeps
it open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from holdfast_cli.job_directory import Endpoint, JobHome
from holdfast_cli.runner.local_job import LocalJob
from holdfast_wire import channel, codec, keys, stream
from holdfast_wire import messages as wire

_log = logging.getLogger(__name__)
_METHOD = "/holdfast.v1.OperatorService/Sync"
_RETRY_SECONDS = 0.1
_CONNECT_SECONDS = 10.0
"""Longest attempt to connect, s: the master is a process on this machine."""

Upward = (
    wire.MasterSpec | wire.PodObservation | wire.ScaleResult | wire.StopRequest | wire.PodListDone
)


class MasterSync:
    """Keeps one stream to the master open until it is closed."""

    def __init__(self, home: JobHome, job: LocalJob, handle: Callable[[Any], None]) -> None:
        """Make a stream that is not open yet.

        home: has the operator's certificate. handle: called with each message of the master.
        """
        self._home, self._job, self._handle = home, job, handle
        self.dropped = 0
        """Messages that were dropped because there is a newer master."""
        self.malformed = 0
        """Messages that could not be decoded, or not be encoded."""
        self._refused = ""
        self._stream: stream.Stream[wire.SyncResponse] | None = None

    def send(self, message: Upward) -> None:
        """Queue a message; before a stream is open, its first messages include it."""
        if self._stream is not None:
            self._stream.send(wire.SyncRequest(message=message))

    async def run(self, endpoint: Callable[[], Endpoint | None]) -> None:
        """Keep a stream open for ever; end it by cancelling the task."""

        def target() -> str | None:
            where = endpoint()
            return None if where is None else where.target

        way = stream.Dial(
            endpoint=target,
            tls_dir=lambda: self._home.tls(keys.ROLE_OPERATOR),
            options=lambda limit: channel.master_channel_options(self._job.uid, limit),
        )
        self._stream = stream.Stream(_METHOD, wire.SyncResponse, way, self, self)
        await self._stream.run()

    # --- messages: `stream.Peer` ------------------------------------------------------------------

    def opening(self) -> Iterable[wire.SyncRequest]:
        """Return the first messages of a new stream."""
        return (wire.SyncRequest(message=message) for message in self._job.first_messages())

    def received(self, response: wire.SyncResponse) -> bool:
        """Act on a message; hang up on an outdated master."""
        if refusal := self._job.refusal(response.fence):
            self._drop(response, refusal)
            return False  # outdated: the next stream may lead to the newer master
        if response.message is not None:
            self._handle(response.message)
        return True

    def unreadable(self, error: codec.WireError) -> None:
        """Drop a message that only a newer release understands."""
        self.malformed += 1
        _log.warning("a message of the master was dropped: %s", error)

    def unsendable(self, error: codec.WireError) -> None:
        """Leave a message out: the others still count."""
        self.malformed += 1
        _log.error("the master is not told: %s", error)

    def ended(self, end: stream.StreamEnding) -> None:
        """Log the end of the stream."""
        if end.endpoint:
            _log.info("the stream to the master ended; trying again: %s", end.reason)

    # --- patience: `stream.Pace` ------------------------------------------------------------------

    def connect_seconds(self, _attempt: int) -> float:
        """Return the longest time for an attempt to connect, s."""
        return _CONNECT_SECONDS

    def greeting_seconds(self) -> None:
        """Return no limit: a master need not answer at once."""

    def pause(self, _attempt: int, *, refused: bool) -> float:
        """Return the time until the next try, s."""
        return _RETRY_SECONDS

    def _drop(self, response: wire.SyncResponse, refusal: str) -> None:
        """Count a message of an outdated master; log the first one."""
        self.dropped += 1
        if refusal != self._refused:
            _log.warning("%s dropped: %s", type(response.message).__name__, refusal)
        self._refused = refusal
