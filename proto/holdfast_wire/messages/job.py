"""Frozen twins of `job.proto`: field for field the same names, nothing computed here."""

from __future__ import annotations

import dataclasses
import enum

from holdfast_wire.messages.spec import BudgetKind, MasterSpec


class JobPhase(enum.IntEnum):
    """JobPhase is the state of the master's state machine."""

    UNSPECIFIED = 0
    WAITING = 1
    """Not enough nodes for a world."""
    FORMING = 2
    """A world is decided; its store is being prepared."""
    STARTING = 3
    """Assignments are out; not all ranks have completed a step yet."""
    TRAINING = 4
    SAVING = 5
    """SAVE_AND_STOP is armed; the boundary is awaited."""
    STOPPING = 6
    """The end was decided; processes are being ended."""
    SUSPENDED = 7
    SUCCEEDED = 8
    FAILED = 9


class NodeState(enum.IntEnum):
    """NodeState as seen by the master."""

    UNSPECIFIED = 0
    WARMING = 1
    """Connected, its zygote not ready yet."""
    READY = 2
    STANDBY = 3
    ACTIVE = 4
    FINISHED = 5
    """Its ranks ended with success while others still run."""
    DRAINING = 6
    DISCONNECTED = 7
    """The stream is gone, the grace for a reconnect runs."""
    LOST = 8
    MISSING = 9
    """Expected but never seen."""


class EventSeverity(enum.IntEnum):
    """EventSeverity as in Kubernetes, plus ERROR for the end of a job."""

    UNSPECIFIED = 0
    NORMAL = 1
    WARNING = 2
    ERROR = 3


class GoodputClass(enum.IntEnum):
    """GoodputClass: every second of every node is in exactly one."""

    UNSPECIFIED = 0
    PRODUCTIVE = 1
    CHECKPOINT = 2
    RESTART = 3
    RESCALE = 4
    ROLLED_BACK = 5
    """Work that was done and lost by a roll-back."""
    WAITING = 6
    HANG = 7
    PREFLIGHT = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """JobStatus is the whole small truth about a job."""

    name: str = ""
    uid: str = ""
    phase: JobPhase = JobPhase.UNSPECIFIED
    reason: str = ""
    """For the phase, CamelCase; and for people."""
    text: str = ""
    epoch: int = 0
    round: int = 0
    world_size: int = 0
    active_nodes: int = 0
    ready_nodes: int = 0
    standby_nodes: int = 0
    replicas: int = 0
    min_replicas: int = 0
    max_replicas: int = 0
    step: int = 0
    """Newest step completed by all ranks."""
    step_seconds: float = 0.0
    loss: float = 0.0
    has_loss: bool = False
    samples_per_second: float = 0.0
    """Samples (or tokens) per second of the whole world, over the last seconds."""
    restarts_in_place: int = 0
    nodes_replaced: int = 0
    nodes_disrupted: int = 0
    rescales: int = 0
    budgets: tuple[BudgetState, ...] = ()
    goodput: float = 0.0
    """Productive share of all node-seconds so far, 0 to 1."""
    started_unix: float = 0.0
    """Unix time, s."""
    finished_unix: float = 0.0
    excluded_nodes: tuple[str, ...] = ()
    generation: int = 0
    job_seconds: float = 0.0
    """The job's own time, s."""
    degraded_progress: bool = False
    """Some node has no SDK: steps unknown there."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """BudgetState: one budget and what is spent of it."""

    kind: BudgetKind = BudgetKind.UNSPECIFIED
    used: int = 0
    limit: int = 0
    window_seconds: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """NodeInfo: one node for people."""

    node_rank: int = 0
    pod_uid: str = ""
    agent_id: str = ""
    host: str = ""
    address: str = ""
    agent_pid: int = 0
    state: NodeState = NodeState.UNSPECIFIED
    group_rank: int = 0
    """Place in the current world; meaningful when state is ACTIVE."""
    base_rank: int = 0
    local_world_size: int = 0
    silent_seconds: float = 0.0
    """Since the last message, s."""
    ranks: tuple[RankInfo, ...] = ()
    version: str = ""
    cold_reason: str = ""
    """Why workers are started cold, if they are."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """RankInfo: one rank for people."""

    rank: int = 0
    local_rank: int = 0
    pid: int = 0
    step: int = 0
    step_seconds: float = 0.0
    since_step_seconds: float = 0.0
    loss: float = 0.0
    section: str = ""
    has_sdk: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """JobEvent: something happened or was decided, with its reason."""

    sequence: int = 0
    unix_time: float = 0.0
    severity: EventSeverity = EventSeverity.UNSPECIFIED
    reason: str = ""
    """CamelCase, from the closed list in holdfast_wire.reasons."""
    text: str = ""
    round: int = 0
    node: str = ""
    """Node rank that it is about, as text; empty: the job."""
    incident_id: str = ""
    """Incident that it belongs to; empty: none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Incident.

    From the first evidence to the first step after it (plus the time in which evidence still
    counts).
    """

    id: str = ""
    cause: str = ""
    """WorkerCrashed, AgentLost, AgentSilent, Preempted, Rescaled, ... (holdfast_wire.reasons)."""
    text: str = ""
    culprit_node: str = ""
    """Node rank and global rank of the culprit as texts; empty: unknown or none."""
    culprit_rank: str = ""
    charged: BudgetKind = BudgetKind.UNSPECIFIED
    """Budget charged at close."""
    opened_unix: float = 0.0
    from_round: int = 0
    to_round: int = 0
    decided_seconds: float = 0.0
    """Seconds from opening: decided, old processes dead and new ones started, first step of all
    ranks."""
    respawned_seconds: float = 0.0
    first_step_seconds: float = 0.0
    detection_seconds: float = 0.0
    """Estimated time from the fault to its detection, s."""
    steps_redone: int = 0
    """Steps that were completed before and had to be done again."""
    open: bool = False
    cost: tuple[GoodputEntry, ...] = ()
    """Node-seconds that it cost, by class."""
    evidence: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GoodputEntry:
    """GoodputEntry: node-seconds of a class."""

    kind: GoodputClass = GoodputClass.UNSPECIFIED
    node_seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GetJobRequest:
    """GetJobRequest."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GetJobResponse:
    """GetJobResponse."""

    status: JobStatus | None = None
    spec: MasterSpec | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchJobRequest:
    """WatchJobRequest."""

    resume_token: str = ""
    """From an earlier WatchJobResponse; empty: begin with a snapshot."""
    min_interval_seconds: float = 0.0
    """Least time between two status deltas, s; 0: 0.5. Events are never held back."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchJobResponse:
    """WatchJobResponse."""

    resume_token: str = ""
    """Continue after this message."""
    message: JobSnapshot | JobStatus | JobEvent | Incident | WatchReset | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchReset:
    """WatchReset."""

    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """JobSnapshot."""

    status: JobStatus | None = None
    nodes: tuple[NodeInfo, ...] = ()
    events: tuple[JobEvent, ...] = ()
    """The newest events, oldest first."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListNodesRequest:
    """ListNodesRequest."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListNodesResponse:
    """ListNodesResponse."""

    nodes: tuple[NodeInfo, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListEventsRequest:
    """ListEventsRequest."""

    after_sequence: int = 0
    """Only events after this sequence."""
    limit: int = 0
    """0: 1000."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListEventsResponse:
    """ListEventsResponse."""

    events: tuple[JobEvent, ...] = ()
    newest_sequence: int = 0
    """Sequence of the newest event that exists."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GetGoodputRequest:
    """GetGoodputRequest."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GetGoodputResponse:
    """GetGoodputResponse."""

    totals: tuple[GoodputEntry, ...] = ()
    node_seconds: float = 0.0
    """Sum of all classes."""
    nodes: tuple[NodeGoodput, ...] = ()
    incidents: tuple[Incident, ...] = ()
    goodput: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeGoodput:
    """NodeGoodput."""

    node_rank: int = 0
    classes: tuple[GoodputEntry, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRequest:
    """ScaleRequest."""

    replicas: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaleResponse:
    """ScaleResponse."""

    generation: int = 0
    """Generation of the spec that carries it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RestartWorkerRequest:
    """RestartWorkerRequest."""

    node_rank: int | None = None
    """Absent: all ranks (a new round in place). Present: replace the agent of this node rank."""
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RestartWorkerResponse:
    """RestartWorkerResponse."""

    round: int = 0
    """The round that the restart leads to is newer than this one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DumpStacksRequest:
    """DumpStacksRequest."""

    node_rank: int | None = None
    """Absent: all nodes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DumpStacksResponse:
    """DumpStacksResponse."""

    nodes: tuple[NodeStacks, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeStacks:
    """NodeStacks."""

    node_rank: int = 0
    error: str = ""
    stacks: tuple[StackText, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StackText:
    """StackText."""

    rank: int = 0
    pid: int = 0
    text: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DrainNodeRequest:
    """DrainNodeRequest."""

    node_rank: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DrainNodeResponse:
    """DrainNodeResponse."""

    text: str = ""
    """For people: what will happen."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StopJobRequest:
    """StopJobRequest."""

    reason: str = ""
    now: bool = False
    """Skip the checkpoint boundary."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StopJobResponse:
    """StopJobResponse."""
