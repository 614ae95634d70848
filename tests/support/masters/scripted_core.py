"""A core that answers from a script, for tests of the shell around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast_master.inputs import Connected, Input, Moment
from holdfast_master.instructions import Fact, Instruction, Record, Send
from holdfast_master.job.requests.figures import JobFigures
from holdfast_master.job.state.counts import Counts
from holdfast_wire.messages import (
    EventRecorded,
    Fence,
    GetGoodputResponse,
    GetHealthResponse,
    HostHistory,
    Incident,
    JobEvent,
    JobPhase,
    JobStatus,
    MasterSpec,
    NodeInfo,
    ReplicaInfo,
    SessionResponse,
    Welcome,
)

React = Callable[[Input, Moment], list[Instruction]]


def on(kind: type, answer: Callable[[Any], list[Instruction]]) -> React:
    """A script that answers each input of `kind`, or with a message of it, and nothing else."""

    def react(event: Input, _now: Moment) -> list[Instruction]:
        heard = isinstance(event, kind) or isinstance(getattr(event, "message", None), kind)
        return answer(event) if heard else []

    return react


class ScriptedCore:
    """Welcomes agents, remembers what it was told, and does what `react` returns."""

    def __init__(self, react: React | None = None) -> None:
        self.inputs: list[Input] = []
        self.events: list[JobEvent] = []
        self.deadline: float | None = None
        self.step = 0
        self.phase = JobPhase.TRAINING
        self.why: tuple[str, ...] = ()
        """Reasons that the newest call is to give."""
        self._react = react or (lambda _event, _now: [])
        self._records = 0

    def open(self, now: Moment) -> list[Instruction]:
        return []

    def handle(self, event: Input, now: Moment) -> list[Instruction]:
        self.inputs.append(event)
        answer: list[Instruction] = []
        if isinstance(event, Connected):
            answer.append(Send(event.session, self.response(Welcome(job_name="job"))))
        return answer + self._react(event, now)

    def next_deadline(self) -> float | None:
        return self.deadline

    def reasons(self) -> tuple[str, ...]:
        return self.why

    def response(self, message: Welcome) -> SessionResponse:
        return SessionResponse(fence=Fence(epoch=1, incarnation="i"), message=message)

    def record(self, fact: Fact, *, durable: bool = False) -> Record:
        self._records += 1
        return Record(fact, durable, self._records, 0.0, 0.0)

    def event(self, text: str) -> Record:
        """Make an event with the next sequence."""
        event = JobEvent(sequence=len(self.events) + 1, reason="Test", text=text)
        self.events.append(event)
        return self.record(EventRecorded(event=event))

    def status(self, now: Moment) -> JobStatus:
        return JobStatus(name="job", phase=self.phase, step=self.step)

    def history(self, now: Moment) -> tuple[HostHistory, ...]:
        """Nothing spoke against any host."""
        return ()

    def replicas(self, now: Moment) -> tuple[ReplicaInfo, ...]:
        """The job is one world."""
        return ()

    def nodes(self, now: Moment) -> tuple[NodeInfo, ...]:
        return (NodeInfo(node_rank=0), NodeInfo(node_rank=1))

    def events_after(self, sequence: int, limit: int) -> tuple[JobEvent, ...]:
        return tuple(self.events[sequence : sequence + limit])

    def newest_event(self) -> int:
        return len(self.events)

    def goodput(self, now: Moment) -> GetGoodputResponse:
        return GetGoodputResponse(goodput=0.5)

    def incidents(self, now: Moment) -> tuple[Incident, ...]:
        return (Incident(id="i1.1"), Incident(id="i1.2", cause="Hang"))

    def health(self, now: Moment) -> GetHealthResponse:
        return GetHealthResponse(round=7)

    def figures(self, now: Moment) -> JobFigures:
        return JobFigures(
            status=self.status(now),
            wanted_nodes=1,
            first_step=0,
            goodput_micros={},
            intervals={},
            slow_ranks=0,
            hangs=False,
            strikes={},
            sync_seconds=0.0,
            saving=None,
            counts=Counts(),
        )

    def spec(self) -> MasterSpec | None:
        return MasterSpec(generation=7)
