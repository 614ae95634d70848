"""The streams to one job's master: spec and pods up, decisions and news down. Transport only.

They reconnect for ever; every new stream begins with everything that the master has to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import prometheus_client as prometheus

from holdfast_operator.plan.view import Said
from holdfast_wire import codec
from holdfast_wire.channel import channel_credentials, operator_channel_options
from holdfast_wire.messages import (
    Fence,
    JobEvent,
    JobSnapshot,
    MasterSpec,
    PodListDone,
    PodObservation,
    ScaleResult,
    StopWish,
    SyncRequest,
    SyncResponse,
    WatchJobRequest,
    WatchJobResponse,
)

_log = logging.getLogger(__name__)
_METHOD: Final = "/holdfast.v1.OperatorService/Sync"
_WATCH: Final = "/holdfast.v1.JobService/WatchJob"
_STATUS_S: Final = 3600.0
"""Between two status messages on the watch: it is there for the events."""
_FIRST_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 1.0
_FIRST_CONNECT_S: Final = 1.5
_LONGEST_CONNECT_S: Final = 10.0
"""An attempt may take so long, each twice as long as the one before: one that goes nowhere keeps no
other waiting, and a master that is slow is reached all the same."""

LINK_ERRORS: Final = prometheus.Counter(
    "holdfast_operator_link_errors_total", "Faults of this program on a stream to a master."
)
OTHER_MASTERS: Final = prometheus.Counter(
    "holdfast_operator_other_masters_total",
    "Messages that were not acted on because there is a newer master.",
)
Response = TypeVar("Response", SyncResponse, WatchJobResponse)
Upward = MasterSpec | PodObservation | ScaleResult | StopWish | PodListDone


class MasterLink:
    """One job's stream, open whenever its master can be reached."""

    def __init__(
        self,
        where: Callable[[], str],
        job_uid: str,
        tls: Callable[[], Path],
        first: Callable[[], Iterable[Upward]],
        heard: Callable[[Said | None], None],
        told: Callable[[Sequence[JobEvent]], None],
        refusal: Callable[[Fence | None], str],
    ) -> None:
        """Begin to connect.

        Args:
            where: Says its host:port now, empty: it has none yet; asked for each stream. A Service
                would lead to pods that are gone for as long as the cluster has not noticed.
            job_uid: Uid of the job.
            tls: Says where the operator's certificate for it is; asked for each stream.
            first: What a new stream begins with.
            heard: Called with each message; with None when the stream has ended.
            told: Called with what happened, some of it again after a connection broke.
            refusal: Why a message with this fence is not acted on; empty: it is.
        """
        self._where = where
        self._target = ""
        """Where it was looked for last."""
        self._job_uid = job_uid
        self._tls = tls
        self._first = first
        self._heard = heard
        self._told = told
        self._refusal = refusal
        self._resume_token = ""
        self._outgoing: asyncio.Queue[Upward] | None = None
        self._trouble = ""
        self._refused = ""
        self._task = asyncio.create_task(self._run(), name=f"link {job_uid}")

    def send(self, message: Upward) -> None:
        """Queue a message; without a stream it is dropped, the next one begins with all of it."""
        if self._outgoing is not None:
            self._outgoing.put_nowait(message)

    async def close(self) -> None:
        """End it."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        wait, limit = _FIRST_RETRY_S, _FIRST_CONNECT_S
        while True:
            told = False
            try:
                async with contextlib.aclosing(self._stream(limit)) as stream:
                    async for message in stream:
                        told = True
                        self._heard(message)
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                # gRPC ends a call like this whose requests have failed.
                self._note("the stream was given up on this side")
            except grpc.aio.AioRpcError as error:
                self._note(f"{error.code().name} {error.details()}")
            except Exception:  # noqa: BLE001 - the top: without it nobody looks after the job
                LINK_ERRORS.inc()
                _log.exception("the stream to master %s failed", self._target)
            self._outgoing = None
            if told:
                self._heard(None)
            wait = _FIRST_RETRY_S if told else min(_LONGEST_RETRY_S, 2 * wait)
            limit = _FIRST_CONNECT_S if told else min(_LONGEST_CONNECT_S, 2 * limit)
            await asyncio.sleep(wait)

    def _note(self, trouble: str) -> None:
        """Log what is wrong, once until it changes: a master may be away for long."""
        if trouble != self._trouble:
            _log.info("master %s: %s", self._target, trouble)
        self._trouble = trouble

    async def _stream(self, limit: float) -> AsyncGenerator[Said, None]:
        before, target = self._target, self._where()
        self._target = target
        if not target:
            self._note("it has no address yet")
            return
        async with grpc.aio.secure_channel(
            target,
            channel_credentials(self._tls()),
            options=operator_channel_options(
                self._job_uid, limit if target == before else _FIRST_CONNECT_S
            ),
        ) as channel:
            open_stream: Any = channel.stream_stream(_METHOD)
            call = open_stream(self._requests())
            watching: list[asyncio.Task[None]] = []
            try:
                async for data in call:
                    response = self._understood(SyncResponse, data)
                    if response is not None and self._drops(response):
                        return  # a zombie: hang up, the next stream may lead to the newer one
                    if not watching:
                        watching.append(asyncio.create_task(self._watch(channel)))
                    if response is not None and response.message is not None:
                        yield response.message
            finally:
                call.cancel()
                for task in watching:
                    task.cancel()
                await asyncio.gather(*watching, return_exceptions=True)

    def _drops(self, response: SyncResponse) -> bool:
        """Whether its master is none any more: that is counted, and the first one logged."""
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
            request = WatchJobRequest(
                resume_token=self._resume_token, min_interval_seconds=_STATUS_S
            )
            try:
                async for data in open_watch(codec.encode(request)):
                    response = self._understood(WatchJobResponse, data)
                    if response is None:
                        continue
                    self._resume_token = response.resume_token or self._resume_token
                    match response.message:
                        case JobSnapshot() as snapshot:
                            self._told(snapshot.events)
                        case JobEvent() as event:
                            self._told((event,))
                        case _:
                            pass
            except grpc.aio.AioRpcError as error:
                self._note(f"events: {error.code().name} {error.details()}")
            except Exception:  # noqa: BLE001 - as in `_run`
                LINK_ERRORS.inc()
                _log.exception("the events of master %s failed", self._target)
            await asyncio.sleep(_LONGEST_RETRY_S)

    def _understood(self, kind: type[Response], data: bytes) -> Response | None:
        """What a message says; None: it is passed over, its master is of a newer release."""
        try:
            return codec.decode(kind, data)
        except codec.WireError as error:
            self._note(f"passed over: {error}")
            return None

    async def _requests(self) -> AsyncIterator[bytes]:
        try:
            async for message in self._messages():
                data = self._encoded(message)
                if data is not None:
                    yield data
        except Exception:
            LINK_ERRORS.inc()
            _log.exception("what master %s is to be told cannot be sent", self._target)
            raise  # gRPC does not say so, and cancels the call: `_run` opens the next one

    async def _messages(self) -> AsyncIterator[Upward]:
        outgoing = self._outgoing = asyncio.Queue()
        for message in self._first():
            yield message
        while True:
            yield await outgoing.get()

    def _encoded(self, message: Upward) -> bytes | None:
        """A message's bytes; None: the wire does not take it, and the others still count."""
        try:
            return codec.encode(SyncRequest(message=message))
        except codec.WireError as error:
            LINK_ERRORS.inc()
            _log.error("master %s is not told: %s", self._target, error)
            return None


def _is_cancelled() -> bool:
    """Whether somebody has cancelled this task, rather than a call in it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
