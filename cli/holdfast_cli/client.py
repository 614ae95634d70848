"""Calls to a job's master: mTLS, deadlines, and errors as text.

Belongs here: the transport of JobService. Does not belong here: the output.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import grpc

from holdfast_cli.errors import MasterRefusedError, MasterUnreachableError
from holdfast_cli.final_state import FinalState
from holdfast_cli.job_directory import JobHome
from holdfast_cli.target import JobTarget, place_of
from holdfast_wire import codec, errors
from holdfast_wire import messages as wire
from holdfast_wire.v1.job_pb2_grpc import JobServiceStub

_PAGE = 5000
"""Most events in one answer; a master sends no more."""
_UNREACHABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)
"""Status codes of gRPC for a broken connection."""


class JobClient:
    """A user's connection to one master. Close it, or use it as a context manager.

    If the master is gone because the job has ended, the job's final state answers instead.
    """

    def __init__(self, job: JobHome | JobTarget) -> None:
        """Prepare a connection to the master of a job; connects at the first call.

        Raises:
            MasterUnreachableError: No master serves this job, and there is no final state.
        """
        self._place = place_of(job)
        self._open = contextlib.ExitStack()
        self.ended = None if self._place.is_running() else self._place.ending()
        """Final state of the job; None while it runs, or if none was written."""
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
        """Send one request, for example GetJobRequest, and return its response.

        Raises:
            MasterUnreachableError: no answer within `timeout_s` seconds.
            RefusedError: The master refused the request.
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
    ) -> wire.ListEventsResponse:
        """Return the events after a sequence number, oldest first; if more than `most`, the newest.

        A master sends as many as fit into a message, oldest first, so there may be several calls.

        Raises:
            MasterUnreachableError: no answer within `timeout_s` seconds.
            RefusedError: The master refused the request.
        """
        if most is not None:
            newest = self.call(wire.ListEventsRequest(limit=1), timeout_s).newest_sequence
            after = max(after, newest - most)
        found: list[wire.JobEvent] = []
        while True:
            request = wire.ListEventsRequest(after_sequence=after, limit=_PAGE)
            page: wire.ListEventsResponse = self.call(request, timeout_s)
            found += page.events
            if not page.events or found[-1].sequence >= page.newest_sequence:
                kept = found if most is None else found[-most:]
                return dataclasses.replace(page, events=tuple(kept))
            after = found[-1].sequence

    def watch(self, request: wire.WatchJobRequest) -> Iterator[wire.WatchJobResponse]:
        """Yield the master's messages to a watcher, until the stream ends.

        Raises:
            MasterUnreachableError: the connection broke.
            RefusedError: The master refused the request.
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

    def _find_end(self, error: grpc.RpcError) -> FinalState:
        """Return the final state if the master is gone because the job has ended; else raise."""
        failure = self._translate(error)
        if isinstance(failure, MasterUnreachableError):
            self.ended = self._place.ending()
        if self.ended is None:
            raise failure from error
        return self.ended

    def _translate(self, error: grpc.RpcError) -> MasterUnreachableError | MasterRefusedError:
        refusal = errors.read(error)
        if refusal.code in _UNREACHABLE and refusal.reason in {"UNKNOWN", "MASTER_SUPERSEDED"}:
            return MasterUnreachableError(self._place.why_unreachable(refusal.text))
        return MasterRefusedError(f"{refusal.text} ({refusal.reason})")
