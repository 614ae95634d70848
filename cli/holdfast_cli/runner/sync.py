"""The runner's end of OperatorService.Sync: the spec and pods to the master, decisions back.

Transport only: reconnects, re-sends what a new stream has to know, and hands decisions on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from holdfast_cli.home import Endpoint, JobHome
from holdfast_wire import codec, keys
from holdfast_wire.channel import channel_credentials, master_channel_options
from holdfast_wire.messages import (
    Fence,
    MasterSpec,
    PodListDone,
    PodObservation,
    ScaleResult,
    StopWish,
    SyncRequest,
    SyncResponse,
)
from holdfast_wire.v1.operator_pb2_grpc import OperatorServiceStub

_log = logging.getLogger(__name__)
_RETRY_S = 0.1
_TRANSIENT = (
    grpc.RpcError,
    grpc.aio.UsageError,
    grpc.aio.InternalError,
    asyncio.InvalidStateError,
)
"""How a stream can end; all of them lead to another try."""

Upward = MasterSpec | PodObservation | ScaleResult | StopWish | PodListDone
First = Callable[[], Iterable[Upward]]
Handler = Callable[[Any], None]
Refusal = Callable[[Fence | None], str]


class MasterSync:
    """Keeps one stream to the master open until it is closed."""

    def __init__(
        self, home: JobHome, job_uid: str, first: First, handle: Handler, refusal: Refusal
    ) -> None:
        """Make a stream that is not open yet.

        Args:
            home: Directory of the job, for the operator's certificate.
            job_uid: Uid of the job.
            first: What a new stream begins with: the spec, all pods, PodListDone.
            handle: Called with each decision and status of the master.
            refusal: Why a message with this fence is not acted on; empty: it is.
        """
        self._home = home
        self._job_uid = job_uid
        self._first = first
        self._handle = handle
        self._refusal = refusal
        self.dropped = 0
        """Messages that were not acted on because there is a newer master."""
        self._refused = ""
        self._outgoing: asyncio.Queue[Upward] = asyncio.Queue()
        self._connected = asyncio.Event()

    def send(self, message: Upward) -> None:
        """Queue one message; before a stream is open it is part of what the stream begins with."""
        if self._connected.is_set():
            self._outgoing.put_nowait(message)

    async def run(self, endpoint: Callable[[], Endpoint | None]) -> None:
        """Keep a stream open for ever; end it by cancelling the task."""
        while True:
            where = endpoint()
            if where is not None:
                with contextlib.suppress(*_TRANSIENT):
                    await self._one_stream(where)
                _log.info("the stream to the master ended; trying again")
            self._connected.clear()
            await asyncio.sleep(_RETRY_S)

    async def _one_stream(self, where: Endpoint) -> None:
        async with grpc.aio.secure_channel(
            where.target,
            channel_credentials(self._home.tls(keys.ROLE_OPERATOR)),
            options=master_channel_options(self._job_uid),
        ) as channel:
            stub: Any = OperatorServiceStub(channel)
            call = stub.Sync()
            # A task of our own: one that gRPC makes for an iterator is awaited by nobody.
            writing = asyncio.create_task(self._write(call), name="sync-writer")
            try:
                while (answer := await call.read()) is not grpc.aio.EOF:
                    response: SyncResponse = codec.from_proto(answer)
                    if refusal := self._refusal(response.fence):
                        self._drop(response, refusal)
                        return  # a zombie: hang up, the next stream may lead to the newer one
                    if response.message is not None:
                        self._handle(response.message)
            finally:
                writing.cancel()
                # A write that crossed the end of the stream fails in one of several ways.
                await asyncio.gather(writing, return_exceptions=True)
                call.cancel()

    def _drop(self, response: SyncResponse, refusal: str) -> None:
        """Count a message of a master that is none any more; log the first one."""
        self.dropped += 1
        if refusal != self._refused:
            _log.warning("%s dropped: %s", type(response.message).__name__, refusal)
        self._refused = refusal

    async def _write(self, call: Any) -> None:
        self._outgoing = asyncio.Queue()
        self._connected.set()
        for message in self._first():
            await call.write(codec.to_proto(SyncRequest(message=message)))
        while True:
            message = await self._outgoing.get()
            await call.write(codec.to_proto(SyncRequest(message=message)))
