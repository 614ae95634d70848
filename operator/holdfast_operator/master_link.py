"""The streams to one job's master: spec and pods up, decisions and news down. Transport only.

The streams always reconnect (`holdfast_wire.stream`). Every new stream begins with all that the
master has to know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import prometheus_client as prometheus

from holdfast_operator.plan.view import Said
from holdfast_wire import codec, stream
from holdfast_wire import messages as wire
from holdfast_wire.channel import Options

_log = logging.getLogger(__name__)
_METHOD: Final = "/holdfast.v1.OperatorService/Sync"
_WATCH: Final = "/holdfast.v1.JobService/WatchJob"
_STATUS_SECONDS: Final = 3600.0
"""Time between two status messages of the watch, which is there for the events."""
_FIRST_RETRY_SECONDS: Final = 0.1
_LONGEST_RETRY_SECONDS: Final = 1.0
_NO_ADDRESS_SECONDS: Final = 30.0
"""Pause of a link without an address, unless `hurry` ends it: thousands of jobs may wait in
queues."""
_MOST_DOUBLINGS: Final = 8
_FIRST_CONNECT_SECONDS: Final = 1.5
_LONGEST_CONNECT_SECONDS: Final = 10.0
"""Longest attempt to connect; each may take twice as long as the one before. An attempt that leads
nowhere delays little, and a slow master is still reached."""

LINK_ERRORS: Final = prometheus.Counter(
    "holdfast_operator_link_errors_total", "Faults of this program on a stream to a master."
)
OTHER_MASTERS: Final = prometheus.Counter(
    "holdfast_operator_other_masters_total",
    "Messages that were not acted on because there is a newer master.",
)
Response = TypeVar("Response", wire.SyncResponse, wire.WatchJobResponse)
Upward = (
    wire.MasterSpec
    | wire.PodObservation
    | wire.ScaleResult
    | wire.StopRequest
    | wire.PodListDone
    | wire.ClusterStrikes
)
Downward = Said | wire.StrikesReported


class MasterLink:
    """Stream of one job, open whenever the job's master can be reached."""

    def __init__(
        self,
        where: Callable[[], str],
        options: Callable[[float], Options],
        tls: Callable[[], Path],
        first: Callable[[], Iterable[Upward]],
        heard: Callable[[Downward | None], None],
        told: Callable[[Sequence[wire.JobEvent]], None],
        refusal: Callable[[wire.Fence | None], str],
    ) -> None:
        """Begin to connect.

        Args:
            where: Returns the master's host:port now, empty: none yet; called for each stream. A
                Service would lead to dead pods until the cluster notices them.
            options: Returns the channel's options for a longest attempt to connect, s.
            tls: Returns the folder of the operator's certificate for the job; called for each
                stream.
            first: Returns the first messages of a new stream.
            heard: Called with each message; with None when the stream has ended.
            told: Called with events, some of them again after a reconnect.
            refusal: Returns the reason to drop a message with this fence; empty: act on it.
        """
        self._where = where
        self._target = ""
        """Address of the last attempt."""
        self._first = first
        self._heard = heard
        self._told = told
        self._refusal = refusal
        self._resume_token = ""
        self._trouble = ""
        self._refused = ""
        self._spoke = False
        """True: the master has sent a message on this stream."""
        self._tries_here = 0
        """Failed attempts to connect to that address."""
        way = stream.Dial(
            endpoint=self._endpoint,
            tls_dir=tls,
            options=options,
        )
        self._stream = stream.Stream(
            _METHOD, wire.SyncResponse, way, self, self, beside=self._watch
        )
        self._task = asyncio.create_task(self._run(), name="master-link")

    def send(self, message: Upward) -> None:
        """Queue a message; without a stream it is dropped: the next one begins with all of it."""
        self._stream.send(wire.SyncRequest(message=message))

    def hurry(self) -> None:
        """Try at once, if there is no stream: the master's pod has changed."""
        self._stream.hurry()

    async def close(self) -> None:
        """End the stream."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._stream.run()
            except Exception:  # noqa: BLE001 - the top: without it nobody looks after the job
                LINK_ERRORS.inc()
                _log.exception("the stream to master %s failed", self._target)
            self._silent()
            await asyncio.sleep(_FIRST_RETRY_SECONDS)

    # --- messages: `stream.Peer` ------------------------------------------------------------------

    def opening(self) -> Iterable[wire.SyncRequest]:
        """Return the first messages of a new stream."""
        return (wire.SyncRequest(message=message) for message in self._first())

    def received(self, response: wire.SyncResponse) -> bool:
        """Pass a message on; hang up on an outdated master."""
        if self._drops(response):
            return False  # outdated: the next stream may lead to the newer master
        self._tries_here = 0
        if response.message is not None:
            self._spoke = True
            self._heard(response.message)
        return True

    def unreadable(self, error: codec.WireError) -> None:
        """Drop a message that only a newer release understands."""
        self._note(f"passed over: {error}")

    def unsendable(self, error: codec.WireError) -> None:
        """Leave a message out: the others still count."""
        LINK_ERRORS.inc()
        _log.error("master %s is not told: %s", self._target, error)

    def ended(self, end: stream.StreamEnding) -> None:
        """Note the reason, and tell the owner once that the master is not heard any more."""
        self._note(end.reason)
        self._silent()

    def _silent(self) -> None:
        if self._spoke:
            self._spoke = False
            self._heard(None)

    # --- patience: `stream.Pace` ------------------------------------------------------------------

    def connect_seconds(self, _attempt: int) -> float:
        """Return the longest time for an attempt to connect, s: it grows with each try."""
        tries, self._tries_here = self._tries_here, self._tries_here + 1
        return min(
            _LONGEST_CONNECT_SECONDS, _FIRST_CONNECT_SECONDS * (1 << min(tries, _MOST_DOUBLINGS))
        )

    def greeting_seconds(self) -> None:
        """Return no limit: a master need not answer at once."""

    def pause(self, attempt: int, *, refused: bool) -> float:
        """Return the time until the next try, s."""
        if not self._target:
            return _NO_ADDRESS_SECONDS
        return min(
            _LONGEST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * (1 << min(attempt, _MOST_DOUBLINGS))
        )

    def _endpoint(self) -> str:
        before, self._target = self._target, self._where()
        if self._target != before:
            self._tries_here = 0
        return self._target

    def _note(self, trouble: str) -> None:
        """Log a fault, once until it changes: a master may be away for long."""
        if trouble != self._trouble:
            _log.info("master %s: %s", self._target, trouble)
        self._trouble = trouble

    def _drops(self, response: wire.SyncResponse) -> bool:
        """Return True if its master is outdated: that is counted, and the first one is logged."""
        refusal = self._refusal(response.fence)
        if not refusal:
            return False
        OTHER_MASTERS.inc()
        if refusal != self._refused:
            what = type(response.message).__name__
            _log.warning("%s of master %s dropped: %s", what, self._target, refusal)
        self._refused = refusal
        return True

    async def _watch(self, channel: grpc.aio.Channel) -> None:
        open_watch: Any = channel.unary_stream(_WATCH)
        while True:
            request = wire.WatchJobRequest(
                resume_token=self._resume_token, min_interval_seconds=_STATUS_SECONDS
            )
            try:
                async for data in open_watch(codec.encode(request)):
                    response = self._understood(wire.WatchJobResponse, data)
                    if response is None:
                        continue
                    self._resume_token = response.resume_token or self._resume_token
                    match response.message:
                        case wire.JobSnapshot() as snapshot:
                            self._told(snapshot.events)
                        case wire.JobEvent() as event:
                            self._told((event,))
                        case _:
                            pass
            except grpc.aio.AioRpcError as error:
                self._note(f"events: {error.code().name} {error.details()}")
            except Exception:  # noqa: BLE001 - as in `_run`
                LINK_ERRORS.inc()
                _log.exception("the events of master %s failed", self._target)
            await asyncio.sleep(_LONGEST_RETRY_SECONDS)

    def _understood(self, kind: type[Response], data: bytes) -> Response | None:
        """Decode a message; None: it is dropped, because its master is of a newer release."""
        try:
            return codec.decode(kind, data)
        except codec.WireError as error:
            self._note(f"passed over: {error}")
            return None
