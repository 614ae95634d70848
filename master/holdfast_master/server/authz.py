"""Authorization: one interceptor before every method of every service."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from holdfast_master.server import rpc
from holdfast_master.server.connections import ConnectionCounter
from holdfast_master.server.rpc import CallCounters, CallRefusedError, Context
from holdfast_wire import roles

log = logging.getLogger(__name__)

REPEAT_SECONDS = 60.0
"""The same peer is reported again for the same method after this long; it is counted each time."""
_REMEMBERED = 1_000

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class RoleGate(grpc.aio.ServerInterceptor):
    """Refuses calls that the caller's role may not make."""

    def __init__(
        self,
        job_uid: str,
        counters: CallCounters,
        connections: ConnectionCounter,
        report: Callable[[str], None],
    ) -> None:
        """Make a gate for one job; `report` takes a text about a known peer in the wrong role."""
        self._job_uid = job_uid
        self._counters = counters
        self._connections = connections
        self._report = report
        self._guarded: dict[str, Handler] = {}
        self._reported: dict[tuple[str, str], float] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The method's handler behind the check."""
        method = handler_call_details.method
        guarded = self._guarded.get(method)
        if guarded is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            guarded = self._guarded[method] = _behind(handler, self._check_for(method))
        return guarded

    def _check_for(self, method: str) -> Callable[[Context], Awaitable[None]]:
        async def check(context: Context) -> None:
            try:
                self._check(method, context)
            except CallRefusedError as error:
                await rpc.refuse(context, error.refusal, self._counters)

        return check

    def _check(self, method: str, context: Context) -> None:
        identity = rpc.caller(context)
        if identity.job_uid != self._job_uid:
            other = f"the certificate is of job {identity.job_uid}, this master of {self._job_uid}"
            raise CallRefusedError(grpc.StatusCode.PERMISSION_DENIED, "OTHER_JOB", other)
        self._connections.identified(context.peer())
        text = roles.refusal(method, identity.role)
        if text is None:
            return
        self._log_refusal(identity.describe(), method, text)
        code = grpc.StatusCode.PERMISSION_DENIED
        raise CallRefusedError(code, "WRONG_ROLE", text, method=method, role=identity.role)

    def _log_refusal(self, who: str, method: str, text: str) -> None:
        now = time.monotonic()
        if now - self._reported.get((who, method), -REPEAT_SECONDS) < REPEAT_SECONDS:
            return
        if len(self._reported) >= _REMEMBERED:
            self._reported.clear()
        self._reported[who, method] = now
        self._report(f"{who}: {text}")


def _behind(handler: Handler, check: Callable[[Context], Awaitable[None]]) -> Handler:
    """Return `handler` with `check` run before it, whatever its shape is."""
    behaviour: Any = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )

    async def guarded(request: Any, context: Context) -> Any:
        await check(context)
        if inspect.isasyncgenfunction(behaviour):
            async for response in behaviour(request, context):
                await context.write(response)
            return None
        return await behaviour(request, context)

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(guarded, handler.request_deserializer, handler.response_serializer)
