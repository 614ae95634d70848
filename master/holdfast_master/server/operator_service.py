"""OperatorService: the operator's stream between gRPC and the loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable

import grpc

from holdfast_master.inputs import (
    Input,
    OperatorConnected,
    OperatorDisconnected,
    OperatorMessage,
    SyncMessage,
)
from holdfast_master.instructions import SendToOperator
from holdfast_master.server import rpc
from holdfast_master.server.close_connection import finish_writing
from holdfast_master.server.rpc import CallCounters, CallRefusedError, Context
from holdfast_master.server.sessions import Outbox
from holdfast_master.server.spec_check import spec_problem
from holdfast_wire import codec
from holdfast_wire import messages as wire
from holdfast_wire.errors import Refusal

log = logging.getLogger(__name__)

SERVICE = "holdfast.v1.OperatorService"
OUTBOX_LIMIT = 1_000
"""Decisions that wait for the operator; more than a job of this size ever has open."""
FIRST_SECONDS = 10.0
"""A stream that has not brought a spec after this long is ended."""
STATUS_SECONDS = 0.5
"""Between two looks at whether the status is another one: the operator writes once a second."""


class OperatorService:
    """Serves `Sync`; a later stream takes the place of an earlier one."""

    def __init__(
        self,
        put: Callable[[Input], Awaitable[None]],
        push: Callable[[Input], None],
        status: Callable[[], wire.JobStatus],
        fence: wire.Fence,
        counters: CallCounters,
    ) -> None:
        """Make the service; `put` waits while the loop is full, `push` does not."""
        self._put = put
        self._push = push
        self._status = status
        self._fence = fence
        self._counters = counters
        self._current: _Sync | None = None

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers for a server."""
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            self._serve
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Sync": method})

    def send(self, instruction: SendToOperator) -> None:
        """Queue a message for the operator; without one it is dropped."""
        if self._current is None:
            return
        if isinstance(instruction.response.message, wire.FinishDecision):
            self._report(self._current)  # after this one nobody asks any more
        self._current.send(instruction.response)

    async def drained(self) -> None:
        """Wait until the current stream has read everything, or has ended."""
        if self._current is not None:
            self._current.outbox.close()
            await self._current.over.wait()

    async def _serve(self, _requests: object, context: Context) -> None:
        try:
            first = await _first(context)
        except CallRefusedError as error:
            await rpc.refuse(context, error.refusal, self._counters)
        sync = _Sync()
        if self._current is not None:
            self._current.replace()
        self._current = sync
        write = asyncio.create_task(_write(sync, context))
        report = asyncio.create_task(self._keep_reporting(sync))
        report.add_done_callback(sync.end_on_error)
        try:
            await self._put(OperatorConnected())
            await self._put(OperatorMessage(first))
            refusal = await self._listen(sync, context, write)
        except asyncio.CancelledError:
            write.cancel()
            raise
        finally:
            report.cancel()
            sync.over.set()
            if self._current is sync:
                self._current = None
                self._push(OperatorDisconnected())
        sync.outbox.discard()
        await finish_writing(write, context)
        if refusal is not None:
            await rpc.refuse(context, refusal, self._counters)

    async def _keep_reporting(self, sync: _Sync) -> None:
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            self._report(sync)

    def _report(self, sync: _Sync) -> None:
        """Send the status where it is another one; the job's own clock alone is no news."""
        status = self._status()
        compared = dataclasses.replace(status, job_seconds=0.0)
        if compared != sync.reported:
            sync.reported = compared
            sync.send(wire.SyncResponse(fence=self._fence, message=status))

    async def _listen(
        self, sync: _Sync, context: Context, write: asyncio.Task[None]
    ) -> Refusal | None:
        read = asyncio.create_task(self._read(sync, context))
        try:
            for task in (read, write):
                task.add_done_callback(sync.end_on_error)
            return await sync.ended
        finally:
            read.cancel()

    async def _read(self, sync: _Sync, context: Context) -> None:
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                request = rpc.understood(rpc.parse(wire.SyncRequest, data), self._counters)
                if request is not None and self._current is sync:
                    await self._put(_event(request.message))
        except CallRefusedError as error:
            sync.end(error.refusal)
        except grpc.aio.BaseError:
            log.debug("the operator's stream broke")
        sync.end(None)


class _Sync:
    """One stream of the operator."""

    def __init__(self) -> None:
        self.outbox: Outbox[wire.SyncResponse] = Outbox(OUTBOX_LIMIT, frozenset({wire.JobStatus}))
        self.ended: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()
        self.reported: wire.JobStatus | None = None
        """The status that was sent last, without its clock."""

    def send(self, response: wire.SyncResponse) -> None:
        if not self.outbox.put(type(response.message), response):
            text = f"{OUTBOX_LIMIT} messages were waiting; the operator does not read its stream"
            log.warning("cut off: %s", text)
            self.end(Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER", text))

    def replace(self) -> None:
        text = "a later Sync stream has taken this one's place"
        self.end(Refusal(grpc.StatusCode.ABORTED, "REPLACED", text))

    def end(self, refusal: Refusal | None) -> None:
        if not self.ended.done():
            self.ended.set_result(refusal)

    def end_on_error(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("the operator's stream failed", exc_info=task.exception())
            self.end(None)


async def _write(sync: _Sync, context: Context) -> None:
    with contextlib.suppress(grpc.aio.BaseError):  # the operator has gone
        while (response := await sync.outbox.get()) is not None:
            await context.write(codec.encode(response))
    sync.end(None)


async def _first(context: Context) -> wire.MasterSpec:
    data = await rpc.first_message(context, FIRST_SECONDS, "spec", "NO_SPEC")
    spec = rpc.decode(wire.SyncRequest, data).message
    if not isinstance(spec, wire.MasterSpec):
        raise rpc.malformed("the first SyncRequest must carry a spec")
    return _checked(spec)


def _checked(spec: wire.MasterSpec) -> wire.MasterSpec:
    problem = spec_problem(spec)
    if problem:
        raise CallRefusedError(Refusal(grpc.StatusCode.INVALID_ARGUMENT, "WRONG_SPEC", problem))
    return spec


def _event(message: SyncMessage) -> Input:
    return OperatorMessage(_checked(message) if isinstance(message, wire.MasterSpec) else message)
