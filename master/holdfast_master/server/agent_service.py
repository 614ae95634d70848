"""AgentService: the agents' streams between gRPC and the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from holdfast_master.inputs import Connected, DisconnectCause, Disconnected, Input, Received
from holdfast_master.loop.loop import DeferredInput
from holdfast_master.server import rpc
from holdfast_master.server.rpc import CallCounters, CallRefusedError, Context
from holdfast_master.server.sessions import AgentStream, SessionTable, StreamEnd
from holdfast_wire.identity import Identity
from holdfast_wire.messages import Hello, SessionRequest

log = logging.getLogger(__name__)

SERVICE = "holdfast.v1.AgentService"
HELLO_SECONDS = 10.0
"""A stream that has not said hello after this long is ended: it holds memory for nobody."""
RESET_SECONDS = 0.005
"""After the end of the requests, a broken transport shows itself within this long; a half-closed
stream stays as it is."""


class AgentService:
    """Serves `AgentStream` to the agents of one job."""

    def __init__(
        self,
        job_uid: str,
        table: SessionTable,
        put: Callable[[Input | DeferredInput], Awaitable[None]],
        push: Callable[[Input], None],
        counters: CallCounters,
    ) -> None:
        """Make the service; `put` waits while the loop is full, `push` does not."""
        self._job_uid = job_uid
        self._table = table
        self._put = put
        self._push = push
        self._counters = counters

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers for a server. Messages stay bytes: decoding errors are ours."""
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            self._serve
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Session": method})

    async def _serve(self, _requests: object, context: Context) -> None:
        try:
            raw = await rpc.first_message(context, HELLO_SECONDS, "hello", "NO_HELLO")
            request = rpc.decode(SessionRequest, raw)
            hello = _checked_hello(request, rpc.caller(context), self._job_uid)
        except CallRefusedError as error:
            await rpc.refuse(context, error.refusal, self._counters)
        session = self._table.open(context)
        ending = StreamEnd(DisconnectCause.RESET)
        try:
            await self._put(Connected(session.number, hello, request.fence, raw))
            ending = await session.listen(self._read(session, context))
        except asyncio.CancelledError:
            session.abandon()
            raise
        finally:
            self._table.remove(session)
            if ending.reported:
                self._push(Disconnected(session.number, ending.cause))
        await session.finish()
        if ending.refusal is not None:
            await rpc.refuse(context, ending.refusal, self._counters)

    async def _read(self, session: AgentStream, context: Context) -> None:
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                event = _taken(session, data, self._counters)
                if event is not None:
                    await self._put(event)
        except CallRefusedError as error:
            session.end(StreamEnd(DisconnectCause.REFUSED, error.refusal))
        except grpc.aio.BaseError:
            session.end(StreamEnd(DisconnectCause.RESET))
        else:
            # A dead peer looks like an orderly end; the cancellation of the call follows at once.
            await asyncio.sleep(RESET_SECONDS)
            session.end_after_queue(StreamEnd(DisconnectCause.CLOSED))


def _taken(
    session: AgentStream, data: bytes, counters: CallCounters
) -> Received | DeferredInput | None:
    proto = rpc.parse(SessionRequest, data)
    if proto.WhichOneof("message") == "heartbeat":
        return DeferredInput(partial(_received, session, proto, data, counters))
    return _received(session, proto, data, counters)


def _received(
    session: AgentStream, proto: Any, data: bytes, counters: CallCounters
) -> Received | None:
    request: SessionRequest | None = rpc.understood(proto, counters)
    if request is None or request.message is None:
        return None
    if isinstance(request.message, Hello):
        raise rpc.malformed("SessionRequest.hello came twice; open a new stream instead")
    return Received(session.number, request.fence, request.message, data)


def _checked_hello(request: SessionRequest, peer: Identity, job_uid: str) -> Hello:
    hello: Any = request.message
    if not isinstance(hello, Hello):
        kind = "nothing" if hello is None else type(hello).__name__
        raise rpc.malformed(f"the first SessionRequest must be a Hello, it is {kind}")
    if hello.job_uid != job_uid:
        text = f"Hello.job_uid is {hello.job_uid!r}, this master serves {job_uid!r}"
        raise CallRefusedError(grpc.StatusCode.PERMISSION_DENIED, "OTHER_JOB", text)
    if hello.node_rank != peer.index:
        text = f"Hello.node_rank is {hello.node_rank}, the certificate is of {peer.describe()}"
        raise CallRefusedError(grpc.StatusCode.PERMISSION_DENIED, "RANK_MISMATCH", text)
    if not hello.agent_id:
        raise rpc.malformed("Hello.agent_id is empty; it must be a random id of the process")
    return hello
