"""The flash checkpoint between agents and master. Frozen twins of `checkpoint.proto`."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CheckpointVersion:
    """CheckpointVersion: what was saved. Versions are ordered by lineage, then by step."""

    lineage: int = 0
    """The world that trained it; grows with each start from a checkpoint."""
    step: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeld:
    """CheckpointHeld: what every rank of the node has in memory, after it changed."""

    versions: tuple[CheckpointVersion, ...] = ()
    """Newest first, at most 8."""
    whole: bool = False
    """True: of each of them all that any world needs is here, as where every node has the whole
    state. What ranks have each for itself may be lacking where a new world begins that anew: the
    random generators."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointShard:
    """CheckpointShard: the parts of all ranks of a node are durable on storage, or will not be."""

    version: CheckpointVersion | None = None
    world_size: int = 0
    """Ranks that the version consists of."""
    ranks: tuple[int, ...] = ()
    """Those of this node."""
    root: str = ""
    """Directory of the checkpoints."""
    attempt: str = ""
    """Name of the attempt in whose directory the parts lie; equal on all nodes of a world."""
    bytes: int = 0
    error: str = ""
    """Nonempty: they could not be written, and why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommitStep:
    """CommitStep is the grant without which nothing is committed: to one agent at a time."""

    version: CheckpointVersion | None = None
    world_size: int = 0
    root: str = ""
    attempt: str = ""
    """The attempt of the shards; names of earlier coordinators begin with it too."""
    own: str = ""
    """This coordinator's own name: taking it makes an earlier one find nothing to commit."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepCommitted:
    """StepCommitted answers a CommitStep."""

    version: CheckpointVersion | None = None
    own: str = ""
    error: str = ""
    """Nonempty: it was not committed, and why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepAnnounced:
    """StepAnnounced: a version is committed and will not be lost, or it will not be committed."""

    version: CheckpointVersion | None = None
    error: str = ""
    """Nonempty: it will not be, and why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SaveHeld:
    """SaveHeld: a version that every node of its world has in memory is to go to storage."""

    version: CheckpointVersion | None = None
    attempt: str = ""
    """The attempt that its parts are to lie in; the same for all nodes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseBefore:
    """ReleaseBefore: what the agents of a round need not keep in memory any more."""

    complete: CheckpointVersion | None = None
    """The newest version that every rank of the world has: older ones may go."""
    passed_over: tuple[CheckpointVersion, ...] = ()
    """Newer ones that some node has left out: they will never be complete."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SavingReport:
    """SavingReport: what saving costs on a node, the most of its ranks; what they know."""

    memory_seconds: float = 0.0
    """That a save to memory stops training, s; 0: not measured yet."""
    storage_seconds: float = 0.0
    """That one to storage stops it, with what the steps take longer while it is written, s."""
    durable_seconds: float = 0.0
    """From such a save until it is durable, s."""
    memory_every: int | None = None
    """The script's own numbers of steps; absent: the master's hold."""
    storage_every: int | None = None
    seen_id: int = 0
    """Newest SetSchedule that all ranks of the node have heard of; 0: none."""
    seen_step: int = 0
    """Most steps that one of them had completed when it did."""
    step_seconds: float = 0.0
    """A training step without any save, s; 0: not measured yet."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetSchedule:
    """SetSchedule: steps between checkpoints that are to hold from a step of a round on."""

    schedule_id: int = 0
    step: int = 0
    """The first step that it holds for."""
    memory_every: int = 0
    storage_every: int = 0
    confirmed: bool = False
    """False: a rank saves what either schedule asks for, from the step on. True: all ranks have
    heard of it before their step, and the one before ends there."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RestoreAsked:
    """RestoreAsked: all ranks of the node wait to be told what their round starts from."""

    memory: tuple[CheckpointVersion, ...] = ()
    """What all ranks of this node could take from its memory, newest first."""
    stored: tuple[CheckpointVersion, ...] = ()
    """What is committed in the directory, newest first, at most 16."""
    told: Origin | None = None
    """Set: a master has told already, and they have begun."""
    parts: tuple[HeldPart, ...] = ()
    """What lies in its memory, whoever saved it, newest first, at most 8."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeldPart:
    """HeldPart: parts of a version that a node has in memory."""

    version: CheckpointVersion | None = None
    world_size: int = 0
    """Ranks that the version consists of."""
    ranks: tuple[int, ...] = ()
    """Those whose parts lie here."""
    whole: bool = False
    """True: these are all that any world needs, as in CheckpointHeld."""
    world: str = ""
    """Names the world that saved it: two masters may have given one number to two worlds. Empty:
    not known."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin: what a round starts from, the same for all of its nodes."""

    origin_id: int = 0
    version: CheckpointVersion | None = None
    """Absent: nothing is there to start from."""
    memory: bool = False
    """True: from the nodes' memory; false: from storage."""
    go: bool = False
    """False: check it and answer OriginChecked. True: every node found its part intact, or there
    is nothing to check."""
    share: int = 0
    """This node's share of what there is to check on storage: files i with i % shares == share."""
    shares: int = 0
    notes: tuple[str, ...] = ()
    """For people: what was passed over, and why."""
    sources: tuple[PartSource, ...] = ()
    """With memory: where the parts are that this node lacks."""
    partial: bool = False
    """With memory: parts of it are nowhere, and nobody needs them, so it cannot be written to
    storage."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartSource:
    """PartSource: whose memory has parts of the version."""

    node_rank: int = 0
    address: str = ""
    """Of the agent's PeerService, host:port."""
    ranks: tuple[int, ...] = ()
    """Ranks whose parts lie there."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OriginChecked:
    """OriginChecked: this node's share of an Origin is intact, or is not."""

    origin_id: int = 0
    error: str = ""
    """Nonempty: what is damaged."""
