"""JobService: what people and programs ask of a running job.

Belongs here: methods, their messages and deadlines. Does not belong here: watching (see
`service_watch`), and whether a wish is granted (the core decides).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Protocol

import grpc

from holdfast_master import calls
from holdfast_master.calls import CallCounters, Context
from holdfast_master.inputs import Moment, UserRequest
from holdfast_master.message_size import events_fitting, fitting
from holdfast_master.questions import Questions
from holdfast_master.service_watch import WatchService
from holdfast_wire.messages import (
    DrainNodeRequest,
    DumpStacksRequest,
    GetGoodputRequest,
    GetGoodputResponse,
    GetJobRequest,
    GetJobResponse,
    JobEvent,
    JobStatus,
    ListEventsRequest,
    ListEventsResponse,
    ListNodesRequest,
    ListNodesResponse,
    MasterSpec,
    NodeInfo,
    RestartWorkerRequest,
    ScaleRequest,
    StopJobRequest,
    TriggerCheckpointRequest,
)

SERVICE = "holdfast.v1.JobService"
ANSWER_SECONDS = 30.0
"""A caller that sets no deadline waits this long; stacks of all ranks need a few seconds."""
EVENTS_DEFAULT = 1_000
"""Events in one ListEvents that names no limit, as job.proto says."""
EVENTS_MOST = 5_000
"""Events in one ListEvents at most: they fit into one message."""


class Views(Protocol):
    """What of the core is shown; nothing here changes it."""

    def status(self, now: Moment) -> JobStatus:
        """Return the whole small truth."""

    def nodes(self, now: Moment) -> tuple[NodeInfo, ...]:
        """Return every known node."""

    def events_after(self, sequence: int, limit: int) -> tuple[JobEvent, ...]:
        """Return events, oldest first."""

    def newest_event(self) -> int:
        """Return the newest event's sequence."""

    def oldest_event(self) -> int:
        """Return the oldest kept event's sequence."""

    def goodput(self, now: Moment) -> GetGoodputResponse:
        """Return node-seconds by class."""

    def spec(self) -> MasterSpec | None:
        """Return the spec in force."""


class JobService:
    """Answers from the core's views, or asks the core."""

    def __init__(
        self,
        views: Views,
        questions: Questions,
        watch: WatchService,
        clock: Callable[[], Moment],
        counters: CallCounters,
        on_disk: Callable[[], Awaitable[None]],
    ) -> None:
        """Make the service over the loop's core; `clock` and `on_disk` are the loop's."""
        self._on_disk = on_disk
        self._views = views
        self._questions = questions
        self._watch = watch
        self._clock = clock
        self._counters = counters

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return what a server registers."""
        unary = functools.partial(calls.unary, counters=self._counters)
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "GetJob": unary(GetJobRequest, self._get_job),
                "ListNodes": unary(ListNodesRequest, self._list_nodes),
                "ListEvents": unary(ListEventsRequest, self._list_events),
                "GetGoodput": unary(GetGoodputRequest, self._get_goodput),
                "Scale": unary(ScaleRequest, self._ask),
                "RestartWorker": unary(RestartWorkerRequest, self._ask),
                "DumpStacks": unary(DumpStacksRequest, self._ask),
                "DrainNode": unary(DrainNodeRequest, self._ask),
                "StopJob": unary(StopJobRequest, self._ask),
                "TriggerCheckpoint": unary(TriggerCheckpointRequest, self._ask),
                "WatchJob": grpc.unary_stream_rpc_method_handler(self._watch_job),
            },
        )

    async def _get_job(self, request: GetJobRequest, context: Context) -> GetJobResponse:
        await self._on_disk()
        return GetJobResponse(status=self._views.status(self._clock()), spec=self._views.spec())

    async def _list_nodes(self, request: ListNodesRequest, context: Context) -> ListNodesResponse:
        await self._on_disk()
        return ListNodesResponse(nodes=fitting(self._views.nodes(self._clock())))

    async def _list_events(
        self, request: ListEventsRequest, context: Context
    ) -> ListEventsResponse:
        limit = min(request.limit or EVENTS_DEFAULT, EVENTS_MOST)
        await self._on_disk()
        events = events_fitting(self._views.events_after(request.after_sequence, limit))
        return ListEventsResponse(events=events, newest_sequence=self._views.newest_event())

    async def _get_goodput(
        self, request: GetGoodputRequest, context: Context
    ) -> GetGoodputResponse:
        await self._on_disk()
        return self._views.goodput(self._clock())

    async def _watch_job(self, data: bytes, context: Context) -> None:
        await self._on_disk()  # a watch begins with all of the state, as if it had been asked for
        await self._watch.serve(data, context)

    async def _ask(self, request: UserRequest, context: Context) -> object:
        who = calls.caller(context).describe()
        # The stubs say that there always is a deadline.
        remaining: float | None = context.time_remaining()
        seconds = ANSWER_SECONDS if remaining is None else max(0.0, remaining)
        return await self._questions.ask(request, who, seconds)
