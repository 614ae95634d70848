"""What the master says to an agent. Frozen twins of `agent.proto`, nothing computed here."""

from __future__ import annotations

import dataclasses
import enum

from holdfast_wire.messages.fence import Fence
from holdfast_wire.messages.spec import BudgetKind, MasterSpec


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
    keeps_checkpoints: bool = False
    """True: the agents of all nodes of this world keep checkpoints; else every rank of it does so
    for itself."""
    memory_every: int = 0
    """Steps between checkpoints with which the world begins; 0: no master sets any."""
    storage_every: int = 0
    keep_last: int = 0
    """Committed checkpoints that stay on storage, as in MasterSpec."""
    keep_every: int = 0


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
    """Arm: job.step() answers SAVE_AND_STOP when `step` steps are completed, or SAVE."""

    arm_id: int = 0
    step: int = 0
    reason: str = ""
    goes_on: bool = False
    """True: it answers SAVE, and training goes on. A later arm takes the place of this one."""


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
    ended_round: int = 0
    """Round that was ended and that no other has followed yet; 0: none. Who finds it running ends
    it."""
    draining_agents: tuple[str, ...] = ()
    """Agents that were asked to leave at the next boundary."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCharge:
    """BudgetCharge is one charge of a budget."""

    kind: BudgetKind = BudgetKind.UNSPECIFIED
    job_seconds: float = 0.0
    """The job's own time at the charge, s."""
    incident_id: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClassSeconds:
    """ClassSeconds: seconds of one goodput class."""

    name: str = ""
    """Class name as in GoodputClass of job.proto, for example PRODUCTIVE."""
    seconds: float = 0.0
