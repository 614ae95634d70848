"""The parts of the job's state, for all handlers, and what concerns several of them."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from holdfast_master.job.state.changes import Change, PendingChanges
from holdfast_master.job.state.checkpoints import Checkpoints
from holdfast_master.job.state.counts import Counts
from holdfast_master.job.state.data import DataRequests
from holdfast_master.job.state.goodput import GoodputLedger
from holdfast_master.job.state.health import OFF, Health, Preflight
from holdfast_master.job.state.incident import Incidents
from holdfast_master.job.state.job_state import JobState
from holdfast_master.job.state.membership import Membership, Node
from holdfast_master.job.state.operator_view import OperatorView
from holdfast_master.job.state.outgoing_batch import OutgoingBatch
from holdfast_master.job.state.phases import ENDED, Trigger, advance
from holdfast_master.job.state.takeover_claims import Claims
from holdfast_master.job.state.timers import JobClock, Timers
from holdfast_master.job.state.world import Worlds
from holdfast_master.policies.rendezvous import Bounds
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EndReason, EventReason

Judging = TypeVar("Judging", wire.StragglerPolicy, wire.HangPolicy)


@dataclasses.dataclass(slots=True)
class JobEnd:
    """Terms of the job's end, as far as only this master knows them."""

    grace: float = 0.0
    """SIGTERM to SIGKILL when the job is stopped, s."""
    by: float | None = None
    """End of the operator's patience, patient clock, s; None: it named no
    time."""
    text: str = ""
    """Reason for people; empty: an earlier master knew."""


@dataclasses.dataclass(slots=True)
class PendingStacks:
    """A user waits for the stacks of these nodes."""

    request_id: int
    commands: dict[int, int] = dataclasses.field(default_factory=dict)
    """Command id to node rank, those that have not answered."""
    answers: list[wire.NodeStacks] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True, eq=False)
class JobContext:
    """The state of one job, by part."""

    identity: CoreIdentity
    settings: CoreSettings
    state: JobState
    """The fold of the journal: all that survives this master."""
    clock: JobClock = dataclasses.field(default_factory=JobClock)
    timers: Timers = dataclasses.field(default_factory=Timers)
    membership: Membership = dataclasses.field(default_factory=Membership)
    worlds: Worlds = dataclasses.field(default_factory=Worlds)
    incidents: Incidents = dataclasses.field(default_factory=Incidents)
    checkpoints: Checkpoints = dataclasses.field(default_factory=Checkpoints)
    health: Health = dataclasses.field(default_factory=Health)
    preflight: Preflight = dataclasses.field(default_factory=Preflight)
    ledger: GoodputLedger = dataclasses.field(default_factory=GoodputLedger)
    operator: OperatorView = dataclasses.field(default_factory=OperatorView)
    claims: Claims = dataclasses.field(default_factory=Claims)
    """Claims of agents that run a world which the journal does not name."""
    data: DataRequests = dataclasses.field(default_factory=DataRequests)
    end: JobEnd = dataclasses.field(default_factory=JobEnd)
    pending_stacks: dict[int, PendingStacks] = dataclasses.field(default_factory=dict)
    """Users who wait for stacks, by request id."""
    placed: tuple[object, ...] = ()
    """What the digest that the agents keep guards."""
    placed_sequence: int = -1
    """That of the newest record when it was placed, or found to be as it should."""
    counts: Counts = dataclasses.field(default_factory=Counts)
    stepped_down: bool = False
    changes: PendingChanges = dataclasses.field(default_factory=PendingChanges)
    """Reasons for another look at the decisions; `touch` adds to them."""
    out: OutgoingBatch = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.membership.heartbeat = self.settings.heartbeat_seconds
        self.worlds.rescale_cost = self.settings.rescale_cost_seconds
        self.end.grace = self.settings.stop_grace_seconds
        self.out = OutgoingBatch(self.identity, self.state, self.clock, self.operator, self.claims)

    # --------------------------------------------------------------------------------- changing

    def touch(self, why: Change) -> None:
        """Have decisions looked at again, because of this change.

        A handler only notes what happened and touches; once it has returned, `reconcile.steer`
        looks at the whole state and acts: incident, touch, reconcile, next world.
        """
        self.changes.add(why)

    def move(self, trigger: Trigger, reason: str, text: str) -> None:
        """Take a step of the state machine; one that changes nothing is not written."""
        following = advance(self.state.phase, trigger, self.story)
        same = (self.state.phase, self.state.reason, self.state.text)
        if same != (following, reason, text):
            self.out.record(wire.PhaseChanged(phase=following, reason=reason, text=text))

    def request_end(self, *, succeeded: bool, reason: str, text: str, now: bool = True) -> None:
        """Decide the job's end. The first decision stands, unless success comes before it."""
        before = self.state.stop
        if self.state.phase in ENDED or self.state.phase is wire.JobPhase.STOPPING:
            return
        if before is not None and not (succeeded and not before.succeeded):
            if now and not before.now:
                self.out.record(dataclasses.replace(before, now=True), durable=True)
                self.touch(Change.END_REQUESTED)
            return
        self.end.text = text
        self.touch(Change.END_REQUESTED)
        self.out.record(
            wire.StopRequested(reason=reason, succeeded=succeeded, now=now), durable=True
        )
        if reason not in {EndReason.STOPPED_BY_USER, EndReason.STOPPED_BY_OPERATOR}:
            return
        self.out.event(EventReason.STOP_REQUESTED, text)

    def stop_ranks(self, node: Node, reason: str, grace: float = 0.0) -> bool:
        """Have a member of the assigned world end its processes; False: the node is none."""
        world = self.worlds.assigned
        if world is None or not world.has(node):
            return False
        self.out.stop_round(node, world.round_of(node.rank), reason, grace)
        world.disturb(node.rank)
        return True

    def turn(self, rank: int, kind: wire.GoodputClass, incident: str = "") -> None:
        """Count the node's time from now on as this goodput class."""
        self.ledger.turn(rank, kind, self.clock.micros, incident)

    # ---------------------------------------------------------------------------------- reading

    @property
    def now(self) -> float:
        """The patient clock, s."""
        return self.clock.patient

    @property
    def spec(self) -> wire.MasterSpec:
        """The spec in force; an empty one before the first has come."""
        return self.state.spec or wire.MasterSpec()

    @property
    def health_policy(self) -> wire.HealthPolicy:
        """The spec's policies for health; an empty one where it has none."""
        return self.spec.health or wire.HealthPolicy()

    @property
    def straggler_policy(self) -> wire.StragglerPolicy | None:
        """The spec's policy for slow ranks; None: nobody is judged."""
        return _enabled(self.health_policy.straggler)

    @property
    def hang_policy(self) -> wire.HangPolicy | None:
        """The spec's policy for hangs; None: they are not looked for."""
        return _enabled(self.health_policy.hang)

    @property
    def bounds(self) -> Bounds:
        """Allowed sizes of a world."""
        spec = self.spec
        return Bounds(
            minimum=spec.min_replicas,
            replicas=spec.replicas,
            maximum=spec.max_replicas,
            unit=max(1, spec.node_unit, spec.nodes_per_replica),
        )

    @property
    def wanted(self) -> int:
        """Node ranks from this one on are surplus: replicas and standbys together."""
        return self.spec.replicas + self.spec.standbys

    def story(self) -> list[str]:
        """The newest events, for the message of a fault."""
        events = self.state.events
        newest = [events[-back] for back in range(min(20, len(events)), 0, -1)]
        return [f"{event.sequence} {event.reason}: {event.text}" for event in newest]


def _enabled(policy: Judging | None) -> Judging | None:
    return None if policy is None or policy.mode in OFF else policy
