"""JobService: requests of people and programs to a running job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import grpc

from holdfast_master.inputs import Moment, UserRequest
from holdfast_master.server import rpc
from holdfast_master.server.message_size import events_fitting, fitting, ranks_fitting
from holdfast_master.server.pending_requests import Questions
from holdfast_master.server.rpc import CallCounters, CallRefusedError, Context
from holdfast_master.server.watch_service import Views, WatchService
from holdfast_wire import messages as wire
from holdfast_wire.evidence_file import EvidenceFileError
from holdfast_wire.reasons import Cause

SERVICE = "holdfast.v1.JobService"
ANSWER_SECONDS = 30.0
"""A caller that sets no deadline waits this long; stacks of all ranks need a few seconds."""
EVENTS_DEFAULT = 1_000
"""Events in one ListEvents that names no limit, as job.proto says."""
EVENTS_MOST = 5_000
"""Events in one ListEvents at most: they fit into one message."""


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
        """The ids of the incidents that have some."""

    async def read(self, incident_id: str) -> wire.IncidentEvidence | None:
        """Return that of one incident."""


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
        """The handlers of a server: for the views, the watch, and the core's methods.

        Methods that no view answers go to the core, which has their handlers (`user_requests`).
        """
        views = self._views
        shown: dict[str, Callable[[Any], object]] = {
            "GetJob": self._job,
            "ListNodes": self._nodes,
            "ListEvents": self._events,
            "GetGoodput": lambda _: views.goodput(self._clock()),
            "GetHealth": lambda _: views.health(self._clock()),
            "ListIncidents": self._incidents,
        }
        answers: dict[str, Callable[[Any, Context], Awaitable[object]]] = {
            **{name: self._on_disk_first(view) for name, view in shown.items()},
            "GetIncident": self._get_incident,
        }
        made: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "WatchJob": grpc.unary_stream_rpc_method_handler(self._watch_job)
        }
        for method, (request, _) in wire.METHODS.items():
            _, service, name = method.split("/")
            if service == SERVICE and name not in made:
                answer = answers.get(name, self._ask)
                made[name] = rpc.unary(getattr(wire, request), answer, counters=self._counters)
        return grpc.method_handlers_generic_handler(SERVICE, made)

    def _on_disk_first(
        self, view: Callable[[Any], object]
    ) -> Callable[[Any, Context], Awaitable[object]]:
        async def answer(request: Any, _: Context) -> object:
            await self._on_disk()
            return view(request)

        return answer

    def _job(self, _: wire.GetJobRequest) -> wire.GetJobResponse:
        now, views = self._clock(), self._views
        return wire.GetJobResponse(
            status=views.status(now), spec=views.spec(), replicas=views.replicas(now)
        )

    def _nodes(self, _: wire.ListNodesRequest) -> wire.ListNodesResponse:
        now = self._clock()
        nodes, history = fitting(self._views.nodes(now)), self._views.history(now)
        return wire.ListNodesResponse(nodes=nodes, history=history)

    def _events(self, request: wire.ListEventsRequest) -> wire.ListEventsResponse:
        limit = min(request.limit or EVENTS_DEFAULT, EVENTS_MOST)
        events = events_fitting(self._views.events_after(request.after_sequence, limit))
        return wire.ListEventsResponse(events=events, newest_sequence=self._views.newest_event())

    def _incidents(self, _: wire.ListIncidentsRequest) -> wire.ListIncidentsResponse:
        every = self._views.incidents(self._clock())
        known = set(self._evidence.known())
        return wire.ListIncidentsResponse(
            incidents=every, with_evidence=tuple(one.id for one in every if one.id in known)
        )

    async def _get_incident(
        self, request: wire.GetIncidentRequest, context: Context
    ) -> wire.GetIncidentResponse:
        """Return one incident, with as much of its evidence as fits."""
        await self._on_disk()
        every = {fact.id: fact for fact in self._views.incidents(self._clock())}
        fact = every.get(request.incident_id)
        if fact is None:
            text = (
                f"incident_id is {request.incident_id!r}, and no incident that is remembered has"
                " it; ListIncidents has those that exist"
            )
            raise CallRefusedError(grpc.StatusCode.NOT_FOUND, "NO_INCIDENT", text)
        try:
            evidence = await self._evidence.read(fact.id)
        except EvidenceFileError as error:
            return wire.GetIncidentResponse(incident=fact, evidence_missing=str(error))
        if evidence is None:
            why = _MISSING.get(fact.cause, NOT_COLLECTED)
            return wire.GetIncidentResponse(incident=fact, evidence_missing=why)
        page, more = ranks_fitting(evidence, request.skip_ranks)
        return wire.GetIncidentResponse(incident=fact, evidence=page, more=more)

    async def _watch_job(self, data: bytes, context: Context) -> None:
        await self._on_disk()  # a watch begins with all of the state, as if it had been asked for
        await self._watch.serve(data, context)

    async def _ask(self, request: UserRequest, context: Context) -> object:
        who = rpc.caller(context).describe()
        # The stubs say that there always is a deadline.
        remaining: float | None = context.time_remaining()
        seconds = ANSWER_SECONDS if remaining is None else max(0.0, remaining)
        return await self._questions.ask(request, who, seconds)
