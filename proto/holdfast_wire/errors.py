"""Errors on the wire: google.rpc.Status with ErrorInfo, written and read.

A reason is stable and for programs, a text is for people.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from holdfast_wire import keys


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of a call."""

    code: grpc.StatusCode
    reason: str
    """UPPER_SNAKE_CASE, for programs."""
    text: str
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)


def status(refusal: Refusal) -> grpc.Status:
    """A refusal as `context.abort_with_status` takes it."""
    info = ErrorInfo(reason=refusal.reason, domain=keys.API_GROUP, metadata=dict(refusal.metadata))
    detail = AnyMessage()
    detail.Pack(info)
    message = Status(code=refusal.code.value[0], message=refusal.text, details=[detail])
    answer: grpc.Status = rpc_status.to_status(message)
    return answer


def read(error: grpc.RpcError) -> Refusal:
    """The refusal in a failed call; its reason is `UNKNOWN` if the peer attached none."""
    code, text = error.code(), error.details() or ""
    # The stubs know the sync API only: there pairs are named tuples, in the asyncio API plain ones.
    metadata: Any = error.trailing_metadata()
    for key, value in metadata or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            return _read_details(code, text, value)
    return Refusal(code, "UNKNOWN", text)


def _read_details(code: grpc.StatusCode, text: str, data: bytes) -> Refusal:
    message = Status.FromString(data)
    for detail in message.details:
        info = ErrorInfo()
        if detail.Is(ErrorInfo.DESCRIPTOR) and detail.Unpack(info):
            return Refusal(code, info.reason, message.message or text, dict(info.metadata))
    return Refusal(code, "UNKNOWN", message.message or text)
