"""JobService: requests of people and programs to a running job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

import grpc

from holdfast_master.inputs import Moment, UserRequest
from holdfast_master.server import rpc
from holdfast_master.server.message_size import events_fitting, fitting, ranks_fitting
from holdfast_master.server.pending_requests import Questions
from holdfast_master.server.rpc import CallCounters, CallRefusedError, Context
from holdfast_master.server.watch_service import WatchService
from holdfast_wire import messages
from holdfast_wire.errors import Refusal
from holdfast_wire.evidence_file import EvidenceFileError
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
    IncidentEvidence,
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
from holdfast_wire.reasons import Cause

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
        return _listed(self._views.incidents(self._clock()), self._evidence)

    async def _get_incident(
        self, request: GetIncidentRequest, context: Context
    ) -> GetIncidentResponse:
        await self._on_disk()
        return await _incident(self._views.incidents(self._clock()), self._evidence, request)

    async def _watch_job(self, data: bytes, context: Context) -> None:
        await self._on_disk()  # a watch begins with all of the state, as if it had been asked for
        await self._watch.serve(data, context)

    async def _ask(self, request: UserRequest, context: Context) -> object:
        who = rpc.caller(context).describe()
        # The stubs say that there always is a deadline.
        remaining: float | None = context.time_remaining()
        seconds = ANSWER_SECONDS if remaining is None else max(0.0, remaining)
        return await self._questions.ask(request, who, seconds)


NOT_COLLECTED: Final = "only hangs have stacks: of a process that has ended there is none"
NOT_KEPT: Final = "it is not kept any more, or the master that had it kept no journal"
_MISSING: Final = {
    Cause.HANG: NOT_KEPT,
    Cause.HUNG: "they are those of the incident that its text names",
}
"""By the incident's cause."""


class KeptEvidence(Protocol):
    """The evidence that is kept."""

    def known(self) -> tuple[str, ...]:
        """Return the ids of the incidents that have some."""

    async def read(self, incident_id: str) -> IncidentEvidence | None:
        """Return that of one incident."""


def _listed(incidents: Iterable[Incident], kept: KeptEvidence) -> ListIncidentsResponse:
    """Return the list."""
    every, known = tuple(incidents), set(kept.known())
    return ListIncidentsResponse(
        incidents=every,
        with_evidence=tuple(one.id for one in every if one.id in known),
    )


async def _incident(
    incidents: Iterable[Incident], kept: KeptEvidence, request: GetIncidentRequest
) -> GetIncidentResponse:
    """Return one incident, with as much of its evidence as fits.

    Raises:
        CallRefusedError: no incident has that id.
    """
    every = {fact.id: fact for fact in incidents}
    fact = every.get(request.incident_id)
    if fact is None:
        raise CallRefusedError(_absent(request.incident_id))
    try:
        evidence = await kept.read(fact.id)
    except EvidenceFileError as error:
        return GetIncidentResponse(incident=fact, evidence_missing=str(error))
    if evidence is None:
        why = _MISSING.get(fact.cause, NOT_COLLECTED)
        return GetIncidentResponse(incident=fact, evidence_missing=why)
    page, more = ranks_fitting(evidence, request.skip_ranks)
    return GetIncidentResponse(incident=fact, evidence=page, more=more)


def _absent(incident_id: str) -> Refusal:
    text = f"incident_id is {incident_id!r}, and no incident that is remembered has it"
    return Refusal(
        grpc.StatusCode.NOT_FOUND, "NO_INCIDENT", f"{text}; ListIncidents has those that exist"
    )
