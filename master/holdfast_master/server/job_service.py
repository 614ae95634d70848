"""JobService: requests of people and programs to a running job.

Belongs here: methods, their messages and deadlines. Does not belong here: watching (see
`watch_service`), and the answer to a request (the core decides).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import grpc

from holdfast_master.inputs import Moment, UserRequest
from holdfast_master.server import incident_views, rpc
from holdfast_master.server.incident_views import KeptEvidence
from holdfast_master.server.message_size import events_fitting, fitting
from holdfast_master.server.pending_requests import Questions
from holdfast_master.server.rpc import CallCounters, Context
from holdfast_master.server.watch_service import WatchService
from holdfast_wire import messages
from holdfast_wire.messages import (
    METHODS,
    GetGoodputRequest,
    GetGoodputResponse,
    GetHealthRequest,
    GetHealthResponse,
    GetIncidentRequest,
    GetIncidentResponse,
    GetJobRequest,
    GetJobResponse,
    HostHistory,
    Incident,
    JobEvent,
    JobStatus,
    ListEventsRequest,
    ListEventsResponse,
    ListIncidentsRequest,
    ListIncidentsResponse,
    ListNodesRequest,
    ListNodesResponse,
    MasterSpec,
    NodeInfo,
)

SERVICE = "holdfast.v1.JobService"
ANSWER_SECONDS = 30.0
"""A caller that sets no deadline waits this long; stacks of all ranks need a few seconds."""
EVENTS_DEFAULT = 1_000
"""Events in one ListEvents that names no limit, as job.proto says."""
EVENTS_MOST = 5_000
"""Events in one ListEvents at most: they fit into one message."""


class Views(Protocol):
    """The views of the core that are shown; no view changes the core."""

    def status(self, now: Moment) -> JobStatus:
        """Return the status of the whole job."""

    def history(self, now: Moment) -> tuple[HostHistory, ...]:
        """Hosts that something spoke against."""

    def nodes(self, now: Moment) -> tuple[NodeInfo, ...]:
        """Return every known node."""

    def events_after(self, sequence: int, limit: int) -> tuple[JobEvent, ...]:
        """Return events, oldest first."""

    def newest_event(self) -> int:
        """Return the newest event's sequence."""

    def goodput(self, now: Moment) -> GetGoodputResponse:
        """Return node-seconds by class."""

    def health(self, now: Moment) -> GetHealthResponse:
        """Return the ranks of the running world, who is slow, and the hang that holds."""

    def incidents(self, now: Moment) -> tuple[Incident, ...]:
        """Return every incident that is remembered."""

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
        evidence: KeptEvidence,
    ) -> None:
        """Make the service over the loop's core; `clock` and `on_disk` are the loop's."""
        self._on_disk, self._evidence = on_disk, evidence
        self._views = views
        self._questions = questions
        self._watch = watch
        self._clock = clock
        self._counters = counters

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of a server: for the views, the watch, and the core's methods.

        Methods that no view answers go to the core, which has their handlers (`user_requests`).
        """
        views: dict[str, Callable[[Any, Context], Awaitable[object]]] = {
            "GetJob": self._get_job,
            "ListNodes": self._list_nodes,
            "ListEvents": self._list_events,
            "GetGoodput": self._get_goodput,
            "GetHealth": self._get_health,
            "ListIncidents": self._list_incidents,
            "GetIncident": self._get_incident,
        }
        made: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "WatchJob": grpc.unary_stream_rpc_method_handler(self._watch_job)
        }
        for method, (request, _) in METHODS.items():
            _, service, name = method.split("/")
            if service == SERVICE and name not in made:
                answer = views.get(name, self._ask)
                made[name] = rpc.unary(getattr(messages, request), answer, counters=self._counters)
        return grpc.method_handlers_generic_handler(SERVICE, made)

    async def _get_job(self, request: GetJobRequest, context: Context) -> GetJobResponse:
        await self._on_disk()
        return GetJobResponse(status=self._views.status(self._clock()), spec=self._views.spec())

    async def _list_nodes(self, request: ListNodesRequest, context: Context) -> ListNodesResponse:
        await self._on_disk()
        now = self._clock()
        nodes, history = fitting(self._views.nodes(now)), self._views.history(now)
        return ListNodesResponse(nodes=nodes, history=history)

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

    async def _get_health(self, request: GetHealthRequest, context: Context) -> GetHealthResponse:
        await self._on_disk()
        return self._views.health(self._clock())

    async def _list_incidents(
        self, request: ListIncidentsRequest, context: Context
    ) -> ListIncidentsResponse:
        await self._on_disk()
        return incident_views.listed(self._views.incidents(self._clock()), self._evidence)

    async def _get_incident(
        self, request: GetIncidentRequest, context: Context
    ) -> GetIncidentResponse:
        await self._on_disk()
        return await incident_views.one(
            self._views.incidents(self._clock()), self._evidence, request
        )

    async def _watch_job(self, data: bytes, context: Context) -> None:
        await self._on_disk()  # a watch begins with all of the state, as if it had been asked for
        await self._watch.serve(data, context)

    async def _ask(self, request: UserRequest, context: Context) -> object:
        who = rpc.caller(context).describe()
        # The stubs say that there always is a deadline.
        remaining: float | None = context.time_remaining()
        seconds = ANSWER_SECONDS if remaining is None else max(0.0, remaining)
        return await self._questions.ask(request, who, seconds)
