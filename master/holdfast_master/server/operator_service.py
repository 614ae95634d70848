"""OperatorService: the operator's stream between gRPC and the loop."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import grpc

from holdfast_master.inputs import (
    DisconnectCause,
    Input,
    OperatorConnected,
    OperatorDisconnected,
    OperatorMessage,
    SyncMessage,
)
from holdfast_master.instructions import SendToOperator
from holdfast_master.server import rpc
from holdfast_master.server.rpc import CallCounters, CallRefusedError, Context
from holdfast_master.server.sessions import PeerStream, StreamEnd
from holdfast_master.server.spec_check import spec_problem
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
_PROGRESS: Final[Mapping[str, Any]] = {
    "step": 0,
    "step_seconds": 0.0,
    "loss": 0.0,
    "samples_per_second": 0.0,
    "goodput": 0.0,
    "stored_step": 0,
    "memory_step": 0,
    "health_text": "",
}
"""Fields of a status that change while a job trains and nothing happens to it."""


_Sync = PeerStream[wire.SyncResponse]


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
        self._reported: wire.JobStatus | None = None
        """The status that the current stream was sent last, without its clock."""
        self._reported_at = 0.0
        self._progress_seconds = 0.0
        """The operator's wish: the shortest time between two statuses that tell progress only."""

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
            self._report(self._current, at_once=True)  # after this one nobody asks any more
        _send(self._current, instruction.response)

    async def drained(self) -> None:
        """Wait until the current stream has read everything, or has ended."""
        if self._current is not None:
            self._current.end_after_queue(StreamEnd(DisconnectCause.CLOSED))
            await asyncio.wait({self._current.ended})

    async def _serve(self, _requests: object, context: Context) -> None:
        try:
            first = await _first(context)
        except CallRefusedError as error:
            await rpc.refuse(context, error.refusal, self._counters)
        sync = _Sync(context, OUTBOX_LIMIT, frozenset({wire.JobStatus}))
        if self._current is not None:
            text = "a later Sync stream has taken this one's place"
            self._current.end(_refused(grpc.StatusCode.ABORTED, "REPLACED", text))
        self._current, self._reported = sync, None
        self._progress_seconds = first.progress_seconds
        report = asyncio.create_task(self._keep_reporting(sync))
        report.add_done_callback(sync.end_on_error)
        try:
            await self._put(OperatorConnected())
            await self._put(OperatorMessage(first))
            ending = await sync.listen(self._read(sync, context))
        except asyncio.CancelledError:
            sync.abandon()
            raise
        finally:
            report.cancel()
            if self._current is sync:
                self._current = None
                self._push(OperatorDisconnected())
        await sync.finish()
        if ending.refusal is not None:
            await rpc.refuse(context, ending.refusal, self._counters)

    async def _keep_reporting(self, sync: _Sync) -> None:
        while self._current is sync:
            await asyncio.sleep(STATUS_SECONDS)
            self._report(sync)

    def _report(self, sync: _Sync, *, at_once: bool = False) -> None:
        """Send the status where it is another one; the job's own clock alone is no news.

        at_once: also where it tells progress only, and an operator of many jobs wants to wait.
        """
        status, now = self._status(), asyncio.get_running_loop().time()
        compared = dataclasses.replace(status, job_seconds=0.0)
        if compared == self._reported or self._current is not sync:
            return
        early = now < self._reported_at + self._progress_seconds
        if early and not at_once and _settled(compared) == _settled(self._reported):
            return
        self._reported, self._reported_at = compared, now
        _send(sync, wire.SyncResponse(fence=self._fence, message=status))

    async def _read(self, sync: _Sync, context: Context) -> None:
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                request = rpc.understood(rpc.parse(wire.SyncRequest, data), self._counters)
                if request is not None and self._current is sync:
                    event = _event(request.message)
                    if isinstance(request.message, wire.MasterSpec):
                        self._progress_seconds = request.message.progress_seconds
                    await self._put(event)
        except CallRefusedError as error:
            sync.end(StreamEnd(DisconnectCause.REFUSED, error.refusal))
        except grpc.aio.BaseError:
            log.debug("the operator's stream broke")
        sync.end(StreamEnd(DisconnectCause.CLOSED))


def _settled(status: wire.JobStatus | None) -> wire.JobStatus | None:
    """Return a status without what is progress only; None: there is none."""
    return None if status is None else dataclasses.replace(status, **_PROGRESS)


def _send(sync: _Sync, response: wire.SyncResponse) -> None:
    if not sync.put(response):
        text = f"{OUTBOX_LIMIT} messages were waiting; the operator does not read its stream"
        log.warning("cut off: %s", text)
        sync.end(_refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER", text))


def _refused(code: grpc.StatusCode, reason: str, text: str) -> StreamEnd:
    return StreamEnd(DisconnectCause.REFUSED, Refusal(code, reason, text))


async def _first(context: Context) -> wire.MasterSpec:
    data = await rpc.first_message(context, FIRST_SECONDS, "spec", "NO_SPEC")
    spec = rpc.decode(wire.SyncRequest, data).message
    if not isinstance(spec, wire.MasterSpec):
        raise rpc.malformed("the first SyncRequest must carry a spec")
    return _checked(spec)


def _checked(spec: wire.MasterSpec) -> wire.MasterSpec:
    problem = spec_problem(spec)
    if problem:
        raise CallRefusedError(grpc.StatusCode.INVALID_ARGUMENT, "WRONG_SPEC", problem)
    return spec


def _event(message: SyncMessage) -> Input:
    return OperatorMessage(_checked(message) if isinstance(message, wire.MasterSpec) else message)
