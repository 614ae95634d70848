"""The master's working papers: its state, its nodes, its deadlines, and the batch being written.

Belongs here: what every handler needs to read, and the few ways to change something durable, to
send, and to tell people. Does not belong here: decisions.
"""

from __future__ import annotations

import dataclasses

from holdfast_master.decide.liveness import Limits
from holdfast_master.decide.rendezvous import Bounds
from holdfast_master.instructions import Fact, Instruction, Record, Send, Tell
from holdfast_master.job.boundary import Boundary
from holdfast_master.job.case import Case
from holdfast_master.job.checkpoint_book import Book
from holdfast_master.job.claims import Claims
from holdfast_master.job.job_clock import JobClock
from holdfast_master.job.ledger import Ledger
from holdfast_master.job.operator_view import OperatorView
from holdfast_master.job.roster import Node, Roster
from holdfast_master.job.save_order import SaveOrder
from holdfast_master.job.schedule_book import ScheduleBook
from holdfast_master.job.state import JobState
from holdfast_master.job.timers import Timers
from holdfast_master.job.transitions import ENDED, Trigger, advance
from holdfast_master.job.waiting_requests import StackCall
from holdfast_master.job.world import World
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire.messages import (
    CommandIssued,
    EventRecorded,
    EventSeverity,
    Fence,
    GoodputClass,
    JobEvent,
    JobPhase,
    MasterSpec,
    PhaseChanged,
    SessionResponse,
    StopRequested,
    SyncResponse,
)
from holdfast_wire.reasons import EndReason, EventReason

Warn = EventSeverity.WARNING
EPOCH_BITS = 32
"""Where the epoch stands in the number of a command."""
_LONGEST_TEXT = 1_000
"""Characters of an event's text: what is quoted in one was cut before, this is the last border."""


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """When the digest was placed last, and what it guarded then."""

    sequence: int = -1
    guarded: tuple[object, ...] = ()


@dataclasses.dataclass(slots=True, eq=False)
class Desk:
    """Everything that the handlers share."""

    identity: CoreIdentity
    settings: CoreSettings
    state: JobState
    clock: JobClock = dataclasses.field(default_factory=JobClock)
    roster: Roster = dataclasses.field(default_factory=Roster)
    timers: Timers = dataclasses.field(default_factory=Timers)
    ledger: Ledger = dataclasses.field(default_factory=Ledger)
    operator: OperatorView = dataclasses.field(default_factory=OperatorView)
    world: World | None = None
    """The newest decided world."""
    assigned: World | None = None
    """The newest world whose assignments are out; the same, or the one before."""
    broken: str = ""
    """Why the newest world cannot go on; empty: it can, or there is none."""
    recovering: bool = False
    """The last world was interrupted: the next one is not held up by the join window."""
    case: Case | None = None
    """The incident that the job has not recovered from."""
    cooling: list[Case] = dataclasses.field(default_factory=list)
    """Incidents whose new world trains, while evidence still counts."""
    boundary: Boundary | None = None
    order: SaveOrder | None = None
    """A checkpoint that somebody asked for."""
    spares: set[int] = dataclasses.field(default_factory=set)
    """Candidates outside the newest world."""
    beyond: set[int] = dataclasses.field(default_factory=set)
    """Present nodes whose ranks the spec does not ask for any more."""
    within: set[int] = dataclasses.field(default_factory=set)
    """Candidates whose ranks the spec asks for: counted at every event while some are beyond."""
    surplus: set[int] = dataclasses.field(default_factory=set)
    """Those of them that do not stand in for a wanted rank that is missing."""
    release_overdue: bool = False
    """The time that was promised for the last reduction is over: surplus nodes go although no
    smaller world trains yet."""
    enough_since: float | None = None
    """Since when there are enough nodes for the least world."""
    spare_since: float | None = None
    """Since when there is a node that the world could grow by."""
    newest_round_seen: int = 0
    """Newest round that any agent has named."""
    rescale_cost: float = 0.0
    """Measured pause of a rescale, s."""
    heartbeat: float = 0.0
    """Interval that agents are given, s."""
    stop_grace: float = 0.0
    """SIGTERM to SIGKILL when the job is stopped, s."""
    stop_by: float | None = None
    """When the operator's patience with the end is over, s; None: it named no time."""
    end_text: str = ""
    claims: Claims = dataclasses.field(default_factory=Claims)
    """Of agents that run a world which the journal does not name."""
    event_floor: int = 0
    """Events of an earlier master have numbers up to this."""
    placed: Placed = dataclasses.field(default_factory=Placed)
    """What the agents' digests say."""
    calls: dict[int, StackCall] = dataclasses.field(default_factory=dict)
    checkpoints: Book = dataclasses.field(default_factory=Book)
    schedule: ScheduleBook = dataclasses.field(default_factory=ScheduleBook)
    stepped_down: bool = False
    dirty: bool = False
    """Something changed that decisions depend on."""
    _records: list[Record] = dataclasses.field(default_factory=list)
    _first: list[Instruction] = dataclasses.field(default_factory=list)
    _rest: list[Instruction] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.rescale_cost = self.settings.rescale_cost_seconds
        self.heartbeat = self.settings.heartbeat_seconds
        self.stop_grace = self.settings.stop_grace_seconds

    @property
    def limits(self) -> Limits:
        """Time limits of liveness."""
        settings = self.settings
        return Limits(lease=settings.lease_seconds, reconnect=settings.reconnect_seconds)

    @property
    def now(self) -> float:
        """The patient clock, s."""
        return self.clock.patient

    # ---------------------------------------------------------------------------------- writing

    def record(self, fact: Fact, *, durable: bool = False) -> None:
        """Change the durable state, and have the journal say so."""
        record = Record(
            fact,
            durable,
            self.state.sequence + 1,
            self.clock.moment.unix,
            self.clock.job_seconds,
        )
        self.state.apply(record.journal())
        self._records.append(record)

    def event(
        self,
        reason: str,
        text: str,
        severity: EventSeverity = EventSeverity.NORMAL,
        *,
        node: int | None = None,
        incident: str = "",
    ) -> None:
        """Tell people."""
        event = JobEvent(
            sequence=max(self.state.event_sequence, self.event_floor) + 1,
            unix_time=self.clock.moment.unix,
            severity=severity,
            reason=reason,
            text=text[:_LONGEST_TEXT],
            round=self.state.round,
            node="" if node is None else str(node),
            incident_id=incident,
        )
        self.record(EventRecorded(event=event))

    def move(self, trigger: Trigger, reason: str, text: str) -> None:
        """Take a step of the state machine; one that changes nothing is not written."""
        following = advance(self.state.phase, trigger, self.story)
        same = (self.state.phase, self.state.reason, self.state.text)
        if same != (following, reason, text):
            self.record(PhaseChanged(phase=following, reason=reason, text=text))

    def story(self) -> list[str]:
        """The newest events, for the message of a fault."""
        events = self.state.events
        newest = [events[-back] for back in range(min(20, len(events)), 0, -1)]
        return [f"{event.sequence} {event.reason}: {event.text}" for event in newest]

    def command(self, kind: str, rank: int, *, durable: bool = False) -> int:
        """A new command id; it is written down so that it is never used again.

        It begins with the epoch: a master that knows nothing of another, before it or at the same
        time, gives out none of its numbers, which agents, ranks and operators have seen.
        """
        first = (self.identity.epoch << EPOCH_BITS) + 1
        number = max(first, self.state.next_command_id)
        issued = CommandIssued(command_id=number, node_rank=rank, kind=kind)
        self.record(issued, durable=durable)
        return number

    def request_end(self, *, succeeded: bool, reason: str, text: str, now: bool = True) -> None:
        """Decide the job's end. The first decision stands, unless success comes before it."""
        before = self.state.stop
        if self.state.phase in ENDED or self.state.phase is JobPhase.STOPPING:
            return
        if before is not None and not (succeeded and not before.succeeded):
            if now and not before.now:
                self.record(dataclasses.replace(before, now=True), durable=True)
                self.dirty = True
            return
        self.end_text = text
        self.dirty = True
        self.record(StopRequested(reason=reason, succeeded=succeeded, now=now), durable=True)
        if reason not in {EndReason.STOPPED_BY_USER, EndReason.STOPPED_BY_OPERATOR}:
            return
        self.event(EventReason.STOP_REQUESTED, text)

    # ---------------------------------------------------------------------------------- sending

    def fence(self, round_number: int = 0) -> Fence:
        """This master's fence."""
        return Fence(
            epoch=self.identity.epoch,
            incarnation=self.identity.incarnation,
            group=0,
            round=round_number,
        )

    def send(self, node: Node, message: object, round_number: int = 0) -> None:
        """Send to a node's agent, if it has a stream."""
        if node.session is not None:
            self.send_session(node.session, message, round_number)

    def send_first(self, node: Node, message: object) -> None:
        """Send to a node's agent before the rest of this batch, in the order of the calls."""
        if node.session is not None:
            response = SessionResponse(fence=self.fence(), message=message)  # type: ignore[arg-type]
            self._first.append(Send(node.session, response))

    def send_session(self, session: int, message: object, round_number: int = 0) -> None:
        """Send on a stream."""
        response = SessionResponse(fence=self.fence(round_number), message=message)  # type: ignore[arg-type]
        self._rest.append(Send(session, response))

    def tell(self, message: object) -> None:
        """Send to the operator, if one is connected."""
        if self.operator.connected:
            response = SyncResponse(fence=self.fence(), message=message)  # type: ignore[arg-type]
            self._rest.append(Tell(response))

    def put(self, instruction: Instruction) -> None:
        """Add any other instruction to the batch."""
        self._rest.append(instruction)

    def finish(self) -> list[Instruction]:
        """The batch: records first, of which each but the last says that more follow.

        A journal that is torn between them must not be believed half: a node that is gone, without
        the world that ended with it, is a state that no decision ever left behind.
        """
        records = [dataclasses.replace(record, more=True) for record in self._records[:-1]]
        batch = [*records, *self._records[-1:], *self._first, *self._rest]
        self._records, self._first, self._rest = [], [], []
        return batch

    # ---------------------------------------------------------------------------------- reading

    @property
    def spec(self) -> MasterSpec:
        """The spec in force; an empty one before the first has come."""
        return self.state.spec or MasterSpec()

    @property
    def bounds(self) -> Bounds:
        """Allowed sizes of a world."""
        spec = self.spec
        return Bounds(
            minimum=spec.min_replicas,
            replicas=spec.replicas,
            maximum=spec.max_replicas,
            unit=max(1, spec.node_unit),
        )

    @property
    def wanted(self) -> int:
        """Node ranks from this one on are surplus: replicas and standbys together."""
        return self.spec.replicas + self.spec.standbys

    def running(self) -> World | None:
        """The world whose processes run and may go on; None: there is none."""
        world = self.world
        return world if world is not None and world.assigned and not self.broken else None

    def member(self, node: Node) -> World | None:
        """The running world, if this agent is in it."""
        world = self.running()
        return world if world is not None and world.holds(node.rank, node.agent_id) else None

    def open_cases(self) -> list[Case]:
        """Every incident that is not closed."""
        return [*self.cooling, *([self.case] if self.case else [])]

    # ------------------------------------------------------------------------------ bookkeeping

    def drop(self, node: Node) -> None:
        """The node is gone: forget it."""
        self.roster.remove(node)
        for ranks in (self.spares, self.beyond, self.within, self.surplus):
            ranks.discard(node.rank)
        self.dirty = True

    def turn(self, rank: int, kind: GoodputClass, incident: str = "") -> None:
        """From now on the node's time is of another class."""
        self.ledger.turn(rank, kind, self.clock.micros, incident)
