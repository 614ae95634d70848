"""An agent's session: its envelopes, and the Hello that opens it. Frozen twins of `agent.proto`.

What an agent says later is in `agent_reports`, what it is told in `agent_orders`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from holdfast_wire.messages.agent_orders import (
    Arm,
    ClassSeconds,
    DumpStacks,
    HeartbeatInterval,
    Leave,
    PrepareStore,
    StateDigest,
    StopRound,
    Welcome,
    WorldAssignment,
)
from holdfast_wire.messages.agent_reports import (
    ArmEcho,
    BoundaryReached,
    CommandDone,
    Goodbye,
    Heartbeat,
    RoundStarted,
    RoundStopped,
    StorePrepared,
    Warmed,
    WorkerExited,
)
from holdfast_wire.messages.checkpoint import (
    CheckpointHeld,
    CheckpointShard,
    CommitStep,
    Origin,
    OriginChecked,
    ReleaseBefore,
    RestoreAsked,
    SaveHeld,
    SetSchedule,
    StepAnnounced,
    StepCommitted,
)
from holdfast_wire.messages.fence import Fence


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
        | CheckpointHeld
        | CheckpointShard
        | StepCommitted
        | RestoreAsked
        | OriginChecked
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
        | Origin
        | CommitStep
        | StepAnnounced
        | ReleaseBefore
        | SaveHeld
        | SetSchedule
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
    keeps_checkpoints: bool = False
    """True: the agent keeps checkpoints in memory for its ranks (a plain torchrun does not)."""
    ended_at_boundary: int = 0
    """Ranks of that round that saved at a boundary and have ended: they are not missing from the
    world."""
    arm_id: int = 0
    """Newest Arm of that round at which its ranks stop and that was shown to them; 0: none."""
    knows_goes_on: bool = False
    """True: the agent knows Arm.goes_on. One that does not would stop its ranks."""
    gathers: bool = False
    """The agent reads parts of checkpoints from the memory of others, and lends its own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningWorker:
    """RunningWorker is one live training process."""

    local_rank: int = 0
    pid: int = 0
    round: int = 0
