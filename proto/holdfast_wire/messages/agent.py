"""Frozen twins of `agent.proto`: field for field the same names, nothing computed here."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from holdfast_wire.messages.fence import Fence
from holdfast_wire.messages.spec import BudgetKind, MasterSpec


class RankSection(enum.IntEnum):
    """RankSection is what a rank is doing."""

    UNSPECIFIED = 0
    INIT = 1
    FIRST_STEP = 2
    TRAIN = 3
    EVAL = 4
    CHECKPOINT = 5
    FINISHING = 6


class AssignmentMode(enum.IntEnum):
    """AssignmentMode: how a world is entered."""

    UNSPECIFIED = 0
    RESTART = 1
    """Kill the old round's processes, start new ones."""
    RECONFIGURE = 2
    """Hand the new world to running processes at an outer boundary (local SGD)."""


class LeaveOutcome(enum.IntEnum):
    """LeaveOutcome decides the agent's exit code."""

    UNSPECIFIED = 0
    SUCCEEDED = 1
    """The job succeeded: exit 0."""
    FAILED = 2
    """The job failed: exit 1."""
    RELEASED = 3
    """This node is not needed (scale down, drain, suspend, stop): exit 0."""
    REPLACED = 4
    """Another agent took this node rank, or a newer one: exit 75."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """SessionRequest: agent to master."""

    fence: Fence | None = None
    """The newest fence that the agent has accepted. For messages about workers: the round of
    those workers."""
    message: (
        Hello
        | Heartbeat
        | WorkerExited
        | RoundStarted
        | RoundStopped
        | StorePrepared
        | BoundaryReached
        | ArmEcho
        | CommandDone
        | Warmed
        | Goodbye
        | None
    ) = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionResponse:
    """SessionResponse: master to agent."""

    fence: Fence | None = None
    """Of the master that sends it; round-scoped messages carry the round that they are about."""
    message: (
        Welcome
        | WorldAssignment
        | StopRound
        | PrepareStore
        | Arm
        | DumpStacks
        | Leave
        | StateDigest
        | HeartbeatInterval
        | None
    ) = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Hello says everything that a master without memory needs to know of this agent."""

    job_uid: str = ""
    node_rank: int = 0
    """Stable index of the node (pod index). Must match the certificate."""
    pod_uid: str = ""
    """Pod uid; locally the runner's id of this agent process. A new one with the same node_rank
    replaces the old."""
    agent_id: str = ""
    """Random id of this agent process: tells a reconnect from a restart inside the same pod."""
    agent_pid: int = 0
    host: str = ""
    address: str = ""
    """Address at which other nodes reach this one; an IP."""
    local_world_size: int = 0
    """Processes that this node contributes."""
    topology: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Topology labels, for example topology.kubernetes.io/zone."""
    devices: tuple[str, ...] = ()
    version: str = ""
    """Release of holdfast that the agent runs, for example 0.1.0."""
    warm: bool = False
    """True: the zygote is ready, a round may start here at once."""
    workers: tuple[RunningWorker, ...] = ()
    """Running workers and the round they belong to."""
    round: int = 0
    """Newest round of the agent's group that it was assigned; 0: none."""
    step: int = 0
    """Newest step that all its workers completed in that round."""
    done_command_ids: tuple[int, ...] = ()
    """Ids of the newest commands that were carried out (at most 64)."""
    goodput: tuple[ClassSeconds, ...] = ()
    """Node-seconds of this agent by goodput class, cumulative."""
    digest: StateDigest | None = None
    """Newest digest that a master placed here."""
    store: StorePrepared | None = None
    """A store process that waits for a round."""
    assignment: WorldAssignment | None = None
    """The assignment that the agent runs, so that a blank master can adopt the world."""
    peer_address: str = ""
    """Address of the agent's PeerService, host:port."""
    unmanaged: bool = False
    """True: a standalone or plain torchrun agent that no operator replaces."""
    max_restarts: int | None = None
    """--max-restarts, where it was given: the failure budget is not larger than this."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningWorker:
    """RunningWorker is one live training process."""

    local_rank: int = 0
    pid: int = 0
    round: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClassSeconds:
    """ClassSeconds: seconds of one goodput class."""

    name: str = ""
    """Class name as in GoodputClass of job.proto, for example PRODUCTIVE."""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Heartbeat: alive, and what the ranks do."""

    sequence: int = 0
    ranks: tuple[RankProgress, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """RankProgress is one rank's shared page, sampled by the agent."""

    local_rank: int = 0
    round: int = 0
    step: int = 0
    """Completed steps; 0: none yet, or a script without the SDK."""
    step_seconds: float = 0.0
    """Time of the last step, s."""
    since_step_seconds: float = 0.0
    """Since the last completed step, s."""
    samples: int = 0
    """Samples (or tokens) since the process started."""
    loss: float = 0.0
    section: RankSection = RankSection.UNSPECIFIED
    has_sdk: bool = False
    """False: no SDK in this process."""
    pid: int = 0
    first_step: int = 0
    """Step count at the first step() call of this process: restored step + 1. 0: none yet."""
    first_step_seconds: float = 0.0
    """From the process's start to its first completed step, s; 0: none yet."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    """WorkerExited: a training process ended by itself or by a signal that was not the agent's."""

    local_rank: int = 0
    rank: int = 0
    pid: int = 0
    exit_code: int = 0
    """Exit code, or -N where signal N ended it."""
    error_type: str = ""
    """From the error file, empty without one: exception type and message (at most 8 KiB)."""
    error_message: str = ""
    stderr_tail: str = ""
    """Last lines of standard error, where it is redirected (at most 8 KiB)."""
    matched_patterns: tuple[int, ...] = ()
    """Indices of Welcome.log_patterns that matched."""
    age_seconds: float = 0.0
    """Time between the exit and this message, s."""
    boundary: bool = False
    """The process ended after SAVE_AND_STOP was answered, with its boundary complete."""
    step: int = 0
    """Last step that it completed."""
    final: bool = False
    """Nobody starts it again: the torchrun around it has no restarts left and ends."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted:
    """RoundStarted: all local workers of the round run.

    Sent again at the first completed step of
    all of them.
    """

    first_step: bool = False
    step: int = 0
    """Step number of that first step (restored step + 1)."""
    killed_seconds: float = 0.0
    """Seconds from the assignment's arrival: old workers dead, new ones forked, first step."""
    spawned_seconds: float = 0.0
    first_step_seconds: float = 0.0
    cold_reason: str = ""
    """Nonempty: processes were spawned cold instead of forked, and why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoundStopped:
    """RoundStopped: no process of the round is alive on this node."""

    lease_expired: bool = False
    """The lease ran out and the zygote killed them."""
    exit_codes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StorePrepared:
    """StorePrepared: a TCPStore process waits for a round, or ended."""

    store_id: str = ""
    host: str = ""
    """IP and port; port 0: the store process ended or could not start (see error)."""
    port: int = 0
    error: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryReached:
    """BoundaryReached: every local rank answered SAVE_AND_STOP at `step`, saved and ended."""

    arm_id: int = 0
    step: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArmEcho:
    """ArmEcho.

    The step at which the local ranks saw an arm; max over the ranks, sent once all have seen
    it.
    """

    arm_id: int = 0
    seen_at_step: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandDone:
    """CommandDone answers a command by its id."""

    command_id: int = 0
    ok: bool = False
    text: str = ""
    """Result or error: for DumpStacks the stacks, a text for each local rank (at most 256 KiB in
    all)."""
    stacks: tuple[RankStack, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """RankStack is the stack dump of one rank."""

    local_rank: int = 0
    rank: int = 0
    pid: int = 0
    text: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """Warmed: the zygote is ready; a round may start here at once."""

    seconds: float = 0.0
    cold_reason: str = ""
    """Nonempty: forking is not possible and why; workers will be started cold."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    """Goodbye: the agent ends on purpose."""

    reason: str = ""
    """For people."""
    terminated: bool = False
    """The agent got SIGTERM: a drain, preemption or scale-down by someone else."""
    failed: bool = False
    """Something makes going on impossible for the agent, for example its zygote ended."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Welcome answers a Hello."""

    heartbeat_seconds: float = 0.0
    """Time between heartbeats, s."""
    lease_seconds: float = 0.0
    """The agent's lease: the zygote kills its workers when the lease word is this stale, s."""
    masterless_limit_seconds: float = 0.0
    """How long the agent may train on without a master, s."""
    stop_grace_seconds: float = 0.0
    """SIGTERM to SIGKILL for drain, stop and success, s."""
    log_patterns: tuple[str, ...] = ()
    """Patterns of failure rules that the agent looks for in standard error."""
    round: int = 0
    """The round that the master believes this agent runs; other rounds' workers must be killed.
    0: none."""
    job_name: str = ""
    max_replicas: int = 0
    """Upper bound of nodes, for NNODES-like variables."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatInterval:
    """HeartbeatInterval: a new time between heartbeats (large worlds), s."""

    heartbeat_seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorldAssignment:
    """WorldAssignment is one node's place in a world. Constant size: never the member list."""

    assignment_id: int = 0
    mode: AssignmentMode = AssignmentMode.UNSPECIFIED
    group_rank: int = 0
    """Place of this node among the world's nodes."""
    group_world_size: int = 0
    base_rank: int = 0
    """Global rank of local rank 0."""
    local_world_size: int = 0
    world_size: int = 0
    restart_count: int = 0
    """Equal on all ranks: worlds of this job before this one that restarted processes."""
    max_restarts: int = 0
    store_host: str = ""
    """TCPStore of this round: an IP and a port."""
    store_port: int = 0
    store_id: str = ""
    """The store is this agent's own prepared one with this id; empty: another agent's."""
    world_hash: str = ""
    """SHA-256 over (epoch, group, round, members in rank order with their agent ids), hex."""
    reason: str = ""
    """Why this world was made; shown to people."""
    peers: tuple[PeerAddress, ...] = ()
    """PeerService addresses of up to three members that are asked while there is no master."""
    min_nodes: int = 0
    max_nodes: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PeerAddress:
    """PeerAddress: where another agent of the world answers."""

    node_rank: int = 0
    address: str = ""
    """host:port."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StopRound:
    """StopRound: end the processes of the round in the fence."""

    command_id: int = 0
    grace_seconds: float = 0.0
    """SIGTERM to SIGKILL, s; 0: SIGKILL at once."""
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrepareStore:
    """PrepareStore: have a TCPStore process ready for a round to come."""

    store_id: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Arm: job.step() answers SAVE_AND_STOP when `step` steps are completed."""

    arm_id: int = 0
    step: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DumpStacks:
    """DumpStacks: report all ranks' Python stacks."""

    command_id: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Leave: the agent ends its processes and itself."""

    command_id: int = 0
    grace_seconds: float = 0.0
    """SIGTERM to SIGKILL, s."""
    reason: str = ""
    outcome: LeaveOutcome = LeaveOutcome.UNSPECIFIED


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StateDigest:
    """StateDigest: what a master without a journal needs of its predecessor (at most 64 KiB).

    Kept by three agents.
    """

    fence: Fence | None = None
    sequence: int = 0
    spec: MasterSpec | None = None
    charges: tuple[BudgetCharge, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    event_sequence: int = 0
    job_seconds: float = 0.0
    """The job's own time, s."""
    restart_count: int = 0
    next_command_id: int = 0
    world_members: tuple[int, ...] = ()
    """Node ranks in rank order of the newest world."""
    goodput: tuple[ClassSeconds, ...] = ()
    """Goodput of nodes that are gone."""
    open_incident_id: str = ""
    """Open incident, if any."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCharge:
    """BudgetCharge is one charge of a budget."""

    kind: BudgetKind = BudgetKind.UNSPECIFIED
    job_seconds: float = 0.0
    """The job's own time at the charge, s."""
    incident_id: str = ""
