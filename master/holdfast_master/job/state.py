"""The durable state of a job: the fold of the journal's facts.

Belongs here: what must survive the master's process, changed by `apply` alone. Does not belong
here: decisions, and what agents say again when they reconnect (`roster`, `world`).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any, Final

from holdfast_master.decide import failure_rate
from holdfast_master.decide.goodput import Totals, from_entries
from holdfast_master.job import folding
from holdfast_master.job.transitions import ENDED
from holdfast_wire.messages import (
    BudgetCharge,
    BudgetKind,
    CheckpointCommitted,
    CommandFinished,
    CommandIssued,
    EventRecorded,
    GoodputClass,
    GoodputMarked,
    Incident,
    JobEvent,
    JobFolded,
    JobPhase,
    JournalRecord,
    MasterSpec,
    NodeExcluded,
    NodeGone,
    NodeJoined,
    NodeMarked,
    PhaseChanged,
    ScheduleConfirmed,
    SegmentOpened,
    SpecAccepted,
    StopRequested,
    WorldDecided,
    WorldEnded,
    WorldMember,
    WorldTraining,
)
from holdfast_wire.reasons import PhaseReason

DRAINING: Final = "draining"
FINISHED: Final = "finished"
RELEASED: Final = "released"
REPLACED: Final = "replaced"
PROMISED: Final = "promised"
RENEW: Final = "renew"
ANSWERED: Final = frozenset({"leave", "replace", "stacks", "stop", RENEW})
"""Kinds of commands whose end is told, or is the node's; of others only the ids are kept."""
_KEPT_ENDS = 16


@dataclasses.dataclass(slots=True, kw_only=True)
class JobState:
    """Everything that the journal rebuilds. Two folds of the same records are equal."""

    event_limit: int
    incident_limit: int

    sequence: int = 0
    job_seconds: float = 0.0
    """The job's own time at the newest record, s."""
    epoch: int = 0
    started_unix: float = 0.0
    finished_unix: float = 0.0
    spec: MasterSpec | None = None
    phase: JobPhase = JobPhase.WAITING
    reason: str = PhaseReason.WAITING_FOR_SPEC
    text: str = ""
    active_since: float = 0.0
    """The job's own time when it last began or was resumed, s."""
    stop: StopRequested | None = None

    nodes: dict[int, NodeJoined] = dataclasses.field(default_factory=dict)
    departed: dict[int, NodeJoined] = dataclasses.field(default_factory=dict)
    """The last agent of each node rank that went."""
    draining: set[int] = dataclasses.field(default_factory=set)
    finished: set[int] = dataclasses.field(default_factory=set)
    """Nodes of the assigned world whose processes ended with exit code 0, gone or not."""
    released: set[int] = dataclasses.field(default_factory=set)
    dismissed: dict[str, str] = dataclasses.field(default_factory=dict)
    """Ids of agents that must not return: released, or replaced by another."""
    promised: set[str] = dataclasses.field(default_factory=set)
    """Ids of agents that are to leave, as an earlier master promised, and that have not come."""
    excluded: dict[str, str] = dataclasses.field(default_factory=dict)
    """Kubernetes nodes that replacements avoid, with the reason."""

    round: int = 0
    world: WorldDecided | None = None
    """The newest world; without a store address its assignments are not out."""
    assigned: WorldDecided | None = None
    """The newest world whose assignments are out."""
    vacant: int = 0
    """Places of the assigned world that nodes left and nobody has taken since."""
    assigned_replicas: int = 0
    """Wanted replicas when it was assigned."""
    training: bool = False
    """All ranks of the assigned world completed a step (or it cannot be seen)."""
    ended: bool = True
    """The assigned world is over."""
    best_step: int = 0
    """Newest step that was ever known to be completed."""
    failed_step: int | None = None
    """Newest step before any failure so far; None: nothing has failed yet."""
    ended_steps: dict[int, int] = dataclasses.field(default_factory=dict)
    trained_rounds: dict[int, bool] = dataclasses.field(default_factory=dict)

    charges: list[BudgetCharge] = dataclasses.field(default_factory=list)
    incidents: dict[str, Incident] = dataclasses.field(default_factory=dict)
    incident_count: int = 0
    events: collections.deque[JobEvent] = dataclasses.field(default_factory=collections.deque)
    event_sequence: int = 0
    commands: dict[int, CommandIssued] = dataclasses.field(default_factory=dict)
    next_command_id: int = 1
    goodput: dict[int, Totals] = dataclasses.field(default_factory=dict)
    counted_unix: dict[int, float] = dataclasses.field(default_factory=dict)
    """Unix time up to which each node's goodput is in it; of a node that has none, its coming."""

    checkpoint: CheckpointCommitted | None = None
    """The newest version that was announced durable."""
    schedule: ScheduleConfirmed | None = None
    """The newest distance between checkpoints that all ranks of a world took up."""
    memory_failures: int = 0
    """Failures after which the job went back to memory."""
    storage_failures: int = 0
    """Those after which it went back to storage."""
    trained_seconds: float = 0.0
    """Of its own time in which worlds trained that are over."""
    trains_since: float | None = None
    """The job's own time since which the assigned world trains; None: it does not."""

    restarts_in_place: int = 0
    nodes_replaced: int = 0
    nodes_disrupted: int = 0
    rescales: int = 0

    def apply(self, record: JournalRecord) -> None:
        """Fold one record in."""
        self.sequence = record.sequence
        self.job_seconds = record.job_seconds
        _FOLDS.get(type(record.fact), _NOTHING)(self, record.fact, record)

    @functools.singledispatchmethod
    def _fold(self, fact: None, record: JournalRecord) -> None:
        """A record without a fact changes nothing."""

    @_fold.register
    def _(self, fact: SegmentOpened, record: JournalRecord) -> None:
        self.epoch = fact.epoch
        self.started_unix = self.started_unix or record.unix_time

    @_fold.register
    def _(self, fact: SpecAccepted, _: JournalRecord) -> None:
        self.spec = fact.spec

    @_fold.register
    def _(self, fact: NodeJoined, record: JournalRecord) -> None:
        self._unmark(fact.node_rank)
        self.counted_unix[fact.node_rank] = record.unix_time
        self.nodes[fact.node_rank] = fact

    @_fold.register
    def _(self, fact: NodeGone, _: JournalRecord) -> None:
        known = self.nodes.get(fact.node_rank)
        if known is None or known.agent_id != fact.agent_id:
            return
        self.departed[fact.node_rank] = self.nodes.pop(fact.node_rank)
        self._unmark(fact.node_rank)
        for number in [n for n, c in self.commands.items() if c.node_rank == fact.node_rank]:
            if self.commands[number].kind != "replace":
                del self.commands[number]

    def _unmark(self, rank: int) -> None:
        self.draining.discard(rank)
        self.released.discard(rank)

    @_fold.register
    def _(self, fact: NodeMarked, _: JournalRecord) -> None:
        if fact.mark in {RELEASED, REPLACED}:
            self.dismissed[fact.agent_id] = fact.mark
        if fact.mark == PROMISED:
            (self.promised.add if fact.value else self.promised.discard)(fact.agent_id)
            return
        known = self.nodes.get(fact.node_rank)
        if known is None or known.agent_id != fact.agent_id or fact.mark == REPLACED:
            return
        marks = {DRAINING: self.draining, FINISHED: self.finished, RELEASED: self.released}
        if fact.value:
            marks[fact.mark].add(fact.node_rank)
        else:
            marks[fact.mark].discard(fact.node_rank)

    @_fold.register
    def _(self, fact: NodeExcluded, _: JournalRecord) -> None:
        self.excluded.pop(fact.node, None)  # excluded again, it is the newest
        self.excluded[fact.node] = fact.reason

    @_fold.register
    def _(self, fact: WorldDecided, _: JournalRecord) -> None:
        self.round = fact.round
        self.world = fact
        if fact.store_port == 0:
            return
        self.assigned_replicas = self.spec.replicas if self.spec else 0
        self._count(self.assigned, fact)
        self.assigned = fact
        self.training, self.ended = False, False
        self.finished.clear()

    def _count(self, before: WorldDecided | None, after: WorldDecided) -> None:
        if before is None:
            return
        left = len(_who(before.members) - _who(after.members))
        came = len(_who(after.members) - _who(before.members))
        if len(before.members) != len(after.members):
            self.rescales += 1
        elif not came:
            self.restarts_in_place += 1
        # The others may have trained on without the node: its place stays vacant until then.
        filled = min(came, self.vacant + left)
        self.nodes_replaced += filled
        wanted = max(0, self.assigned_replicas - len(after.members))
        self.vacant = min(self.vacant + left - filled, wanted)

    @_fold.register
    def _(self, fact: WorldTraining, record: JournalRecord) -> None:
        if self.assigned is None or fact.round != self.assigned.round:
            return
        self.training = True
        self.trains_since = record.job_seconds if self.trains_since is None else self.trains_since
        _keep(self.trained_rounds, fact.round, value=True)
        self.best_step = max(self.best_step, fact.step)
        if self._progress(fact.step, trained=True):
            self.charges = [c for c in self.charges if c.kind is not BudgetKind.NO_PROGRESS]

    def _progress(self, step: int, *, trained: bool) -> bool:
        if self.failed_step is None:
            return True
        return step > self.failed_step if self.best_step else trained

    def progressed(self, ended_round: int) -> bool:
        """Whether that world got further than any world before that failed.

        Where steps are not known, a world that trained at all did.
        """
        trained = self.trained_rounds.get(ended_round, False)
        return self._progress(self.ended_steps.get(ended_round, 0), trained=trained)

    @_fold.register
    def _(self, fact: WorldEnded, record: JournalRecord) -> None:
        self.ended = True
        if self.trains_since is not None:
            self.trained_seconds += max(0.0, record.job_seconds - self.trains_since)
            self.trains_since = None
        _keep(self.ended_steps, fact.round, value=fact.step)
        self.best_step = max(self.best_step, fact.step)

    @_fold.register
    def _(self, fact: Incident, _: JournalRecord) -> None:
        if fact.id not in self.incidents:
            self.incident_count += 1
        self.incidents[fact.id] = fact
        if not fact.open and fact.charged in {BudgetKind.FAILURES, BudgetKind.NO_PROGRESS}:
            step = self.ended_steps.get(fact.from_round, 0)
            self.failed_step = max(self.failed_step or 0, step)
        if not fact.open and self.trained_rounds.get(fact.from_round, False):
            self._count_failure(fact)
        folding.trim(self.incidents, self.incident_limit)

    def _count_failure(self, fact: Incident) -> None:
        """What a failure of a world that trained went back to; where all had saved it was none."""
        kinds = {entry.kind for entry in fact.cost}
        if GoodputClass.RESCALE in kinds and GoodputClass.RESTART not in kinds:
            return
        tier = failure_rate.counts(fact.cause)
        self.memory_failures += tier == "memory"
        self.storage_failures += tier == "storage"

    @_fold.register
    def _(self, fact: BudgetCharge, _: JournalRecord) -> None:
        self.charges.append(fact)
        if fact.kind is BudgetKind.PREEMPTIONS:
            self.nodes_disrupted += 1

    @_fold.register
    def _(self, fact: EventRecorded, _: JournalRecord) -> None:
        if fact.event is None:
            return
        self.event_sequence = fact.event.sequence
        self.events.append(fact.event)
        while len(self.events) > self.event_limit:
            self.events.popleft()

    @_fold.register
    def _(self, fact: PhaseChanged, record: JournalRecord) -> None:
        if self.phase is JobPhase.SUSPENDED and fact.phase is JobPhase.WAITING:
            self.active_since = record.job_seconds
        self.phase, self.reason, self.text = fact.phase, fact.reason, fact.text
        if fact.phase in ENDED:
            self.finished_unix = record.unix_time

    @_fold.register
    def _(self, fact: CommandIssued, _: JournalRecord) -> None:
        if fact.kind in ANSWERED:
            self.commands[fact.command_id] = fact
        self.next_command_id = max(self.next_command_id, fact.command_id + 1)

    @_fold.register
    def _(self, fact: CommandFinished, _: JournalRecord) -> None:
        self.commands.pop(fact.command_id, None)

    @_fold.register
    def _(self, fact: GoodputMarked, record: JournalRecord) -> None:
        for node in fact.nodes:
            self.counted_unix[node.node_rank] = record.unix_time
            self.goodput[node.node_rank] = from_entries(node.classes)

    @_fold.register
    def _(self, fact: StopRequested, _: JournalRecord) -> None:
        self.stop = fact

    @_fold.register
    def _(self, fact: CheckpointCommitted, _: JournalRecord) -> None:
        known = self.checkpoint.version if self.checkpoint is not None else None
        if known is None or (fact.version is not None and known <= fact.version):
            self.checkpoint = fact

    @_fold.register
    def _(self, fact: ScheduleConfirmed, _: JournalRecord) -> None:
        self.schedule = fact

    @_fold.register
    def _(self, fact: JobFolded, _: JournalRecord) -> None:
        folding.fold_in(self, fact)


_FOLDS: Final = JobState.__dict__["_fold"].dispatcher.registry
"""Looked up here: a descriptor that is made anew for each record costs more than the fold."""
_NOTHING: Final = _FOLDS[object]


def _who(members: tuple[WorldMember, ...]) -> set[tuple[int, str]]:
    return {(member.node_rank, member.agent_id) for member in members}


def _keep(kept: dict[int, Any], number: int, *, value: Any) -> None:
    kept[number] = value
    folding.trim(kept, _KEPT_ENDS)
