"""What is known of a job. Frozen twins of `job.proto`, nothing computed here; see `job_calls`."""

from __future__ import annotations

import dataclasses
import enum

from holdfast_wire.messages.spec import BudgetKind


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
    stored_step: int = 0
    """Newest step that is committed on storage; 0: none that the master has seen."""
    memory_step: int = 0
    """Newest step that every node of the newest world has in memory; 0: none that the master has
    heard of."""
    checkpoint_intervals: tuple[CheckpointInterval, ...] = ()
    """Tiers of checkpoints that the master has set an interval for; empty: nobody follows its
    schedule."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInterval:
    """CheckpointInterval: how often one tier is saved to, and why."""

    tier: str = ""
    """memory or storage."""
    every: int = 0
    """Steps between saves; 0: none."""
    reason: str = ""
    """For people: what it was computed from."""


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
class NodeGoodput:
    """NodeGoodput."""

    node_rank: int = 0
    classes: tuple[GoodputEntry, ...] = ()
