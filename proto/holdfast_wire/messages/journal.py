"""Frozen twins of `journal.proto`: field for field the same names, nothing computed here."""

from __future__ import annotations

import dataclasses

from holdfast_wire.messages.agent_orders import BudgetCharge
from holdfast_wire.messages.checkpoint import CheckpointVersion
from holdfast_wire.messages.job import Incident, JobEvent, JobPhase, NodeGoodput
from holdfast_wire.messages.spec import MasterSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JournalRecord:
    """JournalRecord is one fact."""

    sequence: int = 0
    unix_time: float = 0.0
    job_seconds: float = 0.0
    """The job's own time, s: runs only while a master runs."""
    fact: (
        SegmentOpened
        | SpecAccepted
        | NodeJoined
        | NodeGone
        | WorldDecided
        | WorldTraining
        | WorldEnded
        | Incident
        | BudgetCharge
        | EventRecorded
        | PhaseChanged
        | CommandIssued
        | CommandFinished
        | GoodputMarked
        | NodeExcluded
        | NodeMarked
        | StopRequested
        | JobFolded
        | CheckpointCommitted
        | ScheduleConfirmed
        | None
    ) = None
    more: bool = False
    """The next record is of the same decision: where the journal ends before it, all of that
    decision counts as unwritten."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOpened:
    """SegmentOpened is the first record of a file: a fact where it begins an epoch, else a head."""

    format: int = 0
    epoch: int = 0
    incarnation: str = ""
    job_name: str = ""
    job_uid: str = ""
    version: str = ""
    """Release that wrote it."""
    part: int = 0
    """0: the epoch's first file; others go on where the one before ends."""
    base: bool = False
    """The file holds a base: JobFolded records, and no facts."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpecAccepted:
    """SpecAccepted."""

    spec: MasterSpec | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """NodeJoined."""

    node_rank: int = 0
    pod_uid: str = ""
    agent_id: str = ""
    address: str = ""
    local_world_size: int = 0
    host: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeGone:
    """NodeGone."""

    node_rank: int = 0
    agent_id: str = ""
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorldMember:
    """WorldMember: one node of a world, in rank order."""

    node_rank: int = 0
    agent_id: str = ""
    local_world_size: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorldDecided:
    """WorldDecided."""

    group: int = 0
    round: int = 0
    members: tuple[WorldMember, ...] = ()
    restart_count: int = 0
    reason: str = ""
    world_hash: str = ""
    store_host: str = ""
    """Filled in once the store is known."""
    store_port: int = 0
    keeps_checkpoints: bool = False
    """The agents of all members keep checkpoints."""
    memory_every: int = 0
    """Steps between checkpoints with which it begins."""
    storage_every: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorldTraining:
    """WorldTraining: all ranks completed their first step."""

    round: int = 0
    step: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorldEnded:
    """WorldEnded."""

    round: int = 0
    step: int = 0
    """Newest step completed by all ranks."""
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EventRecorded:
    """EventRecorded."""

    event: JobEvent | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged:
    """PhaseChanged."""

    phase: JobPhase = JobPhase.UNSPECIFIED
    reason: str = ""
    text: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandIssued:
    """CommandIssued."""

    command_id: int = 0
    node_rank: int = 0
    kind: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandFinished:
    """CommandFinished."""

    command_id: int = 0
    ok: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GoodputMarked:
    """GoodputMarked."""

    nodes: tuple[NodeGoodput, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeExcluded:
    """NodeExcluded."""

    node: str = ""
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeMarked:
    """NodeMarked: draining, finished, released; promised: the agent is to leave when it comes."""

    node_rank: int = 0
    agent_id: str = ""
    mark: str = ""
    """draining, finished, released, replaced or promised."""
    value: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """StopRequested."""

    reason: str = ""
    succeeded: bool = False
    now: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted:
    """CheckpointCommitted: a step lies whole on storage; nobody was told before."""

    version: CheckpointVersion | None = None
    world_size: int = 0
    root: str = ""
    """Directory of the checkpoints."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfirmed:
    """ScheduleConfirmed: all ranks of a round have heard of a schedule in time."""

    round: int = 0
    schedule_id: int = 0
    step: int = 0
    memory_every: int = 0
    storage_every: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentDismissed:
    """AgentDismissed: an agent that must not return."""

    agent_id: str = ""
    mark: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PastMaster:
    """PastMaster: a master that wrote a part of the journal, and its newest event."""

    epoch: int = 0
    incarnation: str = ""
    newest_event: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeCounted:
    """NodeCounted: the time up to which a node's goodput was counted."""

    node_rank: int = 0
    unix_time: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobFolded:
    """JobFolded: what all facts up to its sequence come to; the lists go on in further ones."""

    first: bool = False
    last: bool = False
    epoch: int = 0
    started_unix: float = 0.0
    finished_unix: float = 0.0
    spec: MasterSpec | None = None
    phase: JobPhase = JobPhase.UNSPECIFIED
    reason: str = ""
    text: str = ""
    active_since: float = 0.0
    stop: StopRequested | None = None
    nodes: tuple[NodeJoined, ...] = ()
    departed: tuple[NodeJoined, ...] = ()
    draining: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    released: tuple[int, ...] = ()
    dismissed: tuple[AgentDismissed, ...] = ()
    excluded: tuple[NodeExcluded, ...] = ()
    round: int = 0
    world: WorldDecided | None = None
    assigned: WorldDecided | None = None
    vacant: int = 0
    assigned_replicas: int = 0
    training: bool = False
    ended: bool = False
    best_step: int = 0
    failed_step: int | None = None
    worlds_ended: tuple[WorldEnded, ...] = ()
    trained_rounds: tuple[int, ...] = ()
    charges: tuple[BudgetCharge, ...] = ()
    incidents: tuple[Incident, ...] = ()
    incident_count: int = 0
    events: tuple[JobEvent, ...] = ()
    event_sequence: int = 0
    commands: tuple[CommandIssued, ...] = ()
    next_command_id: int = 0
    goodput: tuple[NodeGoodput, ...] = ()
    restarts_in_place: int = 0
    nodes_replaced: int = 0
    nodes_disrupted: int = 0
    rescales: int = 0
    masters: tuple[PastMaster, ...] = ()
    counted: tuple[NodeCounted, ...] = ()
    checkpoint: CheckpointCommitted | None = None
    schedule: ScheduleConfirmed | None = None
    memory_failures: int = 0
    """Failures after which the job went back to memory, or to storage; and the training in which
    they came, s."""
    storage_failures: int = 0
    trained_seconds: float = 0.0
    trains_since: float | None = None
    """The job's own time since which the assigned world trains, s; absent: it does not."""
    promised: tuple[str, ...] = ()
    """Agents that are to leave, as an earlier master promised, and that have not come yet."""
