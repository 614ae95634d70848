"""One gRPC call: its caller, refusals with their counter, messages between bytes and twins."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc

from holdfast_wire import channel, codec, errors
from holdfast_wire.errors import Refusal
from holdfast_wire.identity import Identity

log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Request = TypeVar("Request")
Twin = TypeVar("Twin")

ABORT_SECONDS = 1.0
"""A status that a peer does not read is not waited for longer than this."""


@dataclasses.dataclass(slots=True)
class CallCounters:
    """Calls and messages that were refused, by the reason in their ErrorInfo."""

    refused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    newer: int = 0
    """Messages that only a newer release understands: they were passed over."""


class CallRefusedError(Exception):
    """A call or a message is refused."""

    def __init__(self, code: grpc.StatusCode, reason: str, text: str, **metadata: str) -> None:
        super().__init__(text)
        self.refusal = Refusal(code, reason, text, metadata)


def malformed(text: str) -> CallRefusedError:
    """The refusal of a message that is not what it must be."""
    return CallRefusedError(grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE", text)


def decode(kind: type[Twin], data: bytes) -> Twin:
    """The twin that `data` holds.

    Raises:
        CallRefusedError: it holds none.
    """
    try:
        return codec.decode(kind, data)
    except codec.WireError as error:
        raise malformed(str(error)) from error


def parse(kind: type[Any], data: bytes) -> Any:
    """The protobuf message of `kind` that `data` holds, for `converted`.

    Raises:
        CallRefusedError: it holds none.
    """
    try:
        return codec.parse(kind, data)
    except codec.WireError as error:
        raise malformed(str(error)) from error


def understood(proto: Any, counters: CallCounters) -> Any:
    """The twin of a protobuf message that carries one of several, None: it is passed over.

    Its sender may be of a newer release, which goes on without an answer to what is new in it; to
    end its stream would only bring the same message again.
    """
    try:
        twin = codec.from_proto(proto)
    except codec.NewerError as error:
        return _pass_over(str(error), counters)
    if twin.message is None:
        kind = type(twin).__name__
        return _pass_over(f"{kind}.message is not set, or is of a newer release", counters)
    return twin


def _pass_over(what: str, counters: CallCounters) -> None:
    if not counters.newer:
        log.warning("passed over: %s; later ones are only counted", what)
    counters.newer += 1


def caller(context: Context) -> Identity:
    """Return the caller.

    Raises:
        CallRefusedError: the certificate carries no name of ours.
    """
    names: Any = context.auth_context()
    identity = channel.peer_identity(names or {})
    if identity is None:
        text = "the client certificate carries no holdfast:// name; use one that the job issued"
        raise CallRefusedError(grpc.StatusCode.UNAUTHENTICATED, "NO_IDENTITY", text)
    return identity


async def first_message(context: Context, seconds: float, what: str, reason: str) -> bytes:
    """The first message of a stream, which must bring `what` within `seconds`.

    Raises:
        CallRefusedError: it does not come, which is refused for `reason`.
    """
    try:
        async with asyncio.timeout(seconds):
            data: Any = await context.read()
    except TimeoutError as error:
        text = f"no {what} within {seconds} s"
        raise CallRefusedError(grpc.StatusCode.DEADLINE_EXCEEDED, reason, text) from error
    if data is grpc.aio.EOF:
        raise malformed(f"the stream ended before its {what}")
    return bytes(data)


async def refuse(context: Context, refusal: Refusal, counters: CallCounters) -> NoReturn:
    """End the call with the refusal's status."""
    counters.refused[refusal.reason] += 1
    log.info(
        "refused: %s",
        refusal.text,
        extra={"peer": context.peer(), "code": refusal.code.name, "reason": refusal.reason},
    )
    try:
        async with asyncio.timeout(ABORT_SECONDS):
            await context.abort_with_status(errors.status(refusal))
    except grpc.aio.AbortError:
        raise
    except (grpc.aio.BaseError, TimeoutError):
        log.debug("the peer left before it was told", extra={"reason": refusal.reason})
    raise asyncio.CancelledError


def unary(
    kind: type[Request],
    answer: Callable[[Request, Context], Awaitable[object]],
    counters: CallCounters,
) -> grpc.RpcMethodHandler[bytes, bytes]:
    """A handler of a call with one request of class `kind` and one response."""

    async def handle(data: bytes, context: Context) -> bytes:
        try:
            return codec.encode(await answer(decode(kind, data), context))
        except CallRefusedError as error:
            await refuse(context, error.refusal, counters)

    return grpc.unary_unary_rpc_method_handler(handle)
