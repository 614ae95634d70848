"""Calls to a job's master: mTLS, deadlines, and errors in words.

Belongs here: the transport of JobService. Does not belong here: what is shown.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import grpc

from holdfast_cli.ending import Ending
from holdfast_cli.failures import MasterUnreachableError, RefusedError
from holdfast_cli.home import JobHome
from holdfast_cli.place import Place, place_of
from holdfast_wire import codec, errors
from holdfast_wire.messages import (
    JobEvent,
    ListEventsRequest,
    ListEventsResponse,
    WatchJobRequest,
    WatchJobResponse,
)
from holdfast_wire.v1.job_pb2_grpc import JobServiceStub

_PAGE = 5000
"""Events in one answer at most; a master sends no more."""
_UNREACHABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)
"""What gRPC itself says of a connection that broke, whenever it broke."""


class JobClient:
    """A user's connection to one master. Close it, or use it as a context manager.

    Where the master is gone because the job has ended, what it said last answers instead.
    """

    def __init__(self, job: JobHome | Place) -> None:
        """Prepare a connection to the master of a job; connects at the first call.

        Raises:
            MasterUnreachableError: no master serves this job, and nothing is known of its end.
        """
        self._place = place_of(job)
        self._open = contextlib.ExitStack()
        self.ended = None if self._place.is_running() else self._place.ending()
        """How the job ended; None while it runs, or where nobody wrote that down."""
        if self.ended is not None:
            return
        reach = self._open.enter_context(self._place.reach())
        channel = grpc.secure_channel(reach.target, reach.credentials, reach.options)
        self._open.callback(channel.close)
        self._stub = JobServiceStub(channel)

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._open.close()

    def call(self, request: object, timeout_s: float = 10.0) -> Any:
        """Send one request twin, for example GetJobRequest, and return the response twin.

        Raises:
            MasterUnreachableError: no answer within `timeout_s` seconds.
            RefusedError: the master said no.
        """
        if self.ended is not None:
            return self.ended.answer(request)
        method = type(request).__name__.removesuffix("Request")
        try:
            answer = getattr(self._stub, method)(codec.to_proto(request), timeout=timeout_s)
        except grpc.RpcError as error:
            return self._find_end(error).answer(request)
        return codec.from_proto(answer)

    def events(
        self, after: int = 0, most: int | None = None, timeout_s: float = 10.0
    ) -> ListEventsResponse:
        """Return the events after a sequence, oldest first; of more than `most` the newest.

        A master sends what fits into a message, oldest first, so there may be several calls.

        Raises:
            MasterUnreachableError: no answer within `timeout_s` seconds.
            RefusedError: the master said no.
        """
        if most is not None:
            newest = self.call(ListEventsRequest(limit=1), timeout_s).newest_sequence
            after = max(after, newest - most)
        found: list[JobEvent] = []
        while True:
            request = ListEventsRequest(after_sequence=after, limit=_PAGE)
            page: ListEventsResponse = self.call(request, timeout_s)
            found += page.events
            if not page.events or found[-1].sequence >= page.newest_sequence:
                kept = found if most is None else found[-most:]
                return dataclasses.replace(page, events=tuple(kept))
            after = found[-1].sequence

    def watch(self, request: WatchJobRequest) -> Iterator[WatchJobResponse]:
        """Yield what the master tells a watcher, until the stream ends.

        Raises:
            MasterUnreachableError: the connection broke.
            RefusedError: the master said no.
        """
        if self.ended is not None:
            yield self.ended.snapshot()
            return
        stream: Any = self._stub.WatchJob(codec.to_proto(request))
        try:
            for message in stream:
                yield codec.from_proto(message)
        except grpc.RpcError as error:
            yield self._find_end(error).snapshot()
        finally:
            with contextlib.suppress(grpc.RpcError):
                stream.cancel()

    def _find_end(self, error: grpc.RpcError) -> Ending:
        """Return how the job ended where that is why its master is gone; else raise the error."""
        failure = self._translate(error)
        if isinstance(failure, MasterUnreachableError):
            self.ended = self._place.ending()
        if self.ended is None:
            raise failure from error
        return self.ended

    def _translate(self, error: grpc.RpcError) -> MasterUnreachableError | RefusedError:
        refusal = errors.read(error)
        if refusal.code in _UNREACHABLE and refusal.reason in {"UNKNOWN", "MASTER_SUPERSEDED"}:
            return MasterUnreachableError(self._place.why_unreachable(refusal.text))
        return RefusedError(f"{refusal.text} ({refusal.reason})")
