"""The present nodes, each as its agent presents itself now, and the sets that decisions need.

Facts that survive the master stand in `job_state`, the test of eligibility in `nodes.eligibility`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from holdfast_master.policies.failure import Evidence, EvidenceKind
from holdfast_master.policies.guessed_steps import reported_step
from holdfast_master.policies.liveness import Pulse
from holdfast_master.policies.rendezvous import Candidate
from holdfast_wire import messages as wire


@dataclasses.dataclass(slots=True, kw_only=True)
class Node:
    """One agent, from its first hello until it is gone. Times are on the patient clock, s."""

    rank: int
    agent_id: str
    pod_uid: str
    local_world_size: int
    hello: wire.Hello | None
    """None: known from the journal, not back yet."""
    session: int | None
    last_heard: float
    disconnected_at: float
    heartbeat: float
    warm: bool = False
    cold_reason: str = ""
    away_noted: bool = False
    """The end of its stream was news."""
    draining: EvidenceKind | None = None
    """Reason why it is to leave; None: it is not."""
    noticed: tuple[object, ...] = ()
    """The newest notice about it that was told to people; empty: none was."""
    over: bool = False
    """Its torchrun said that it has no restarts left: it is on its way out, or out."""
    condemned: bool = False
    """It is to leave because a failure rule says so: its end explains nothing."""
    replace_why: str = ""
    """Reason why a new agent is wanted once this one is released; empty: none is."""
    pod_ends: int = 0
    """Ends of its pod's container that were known when it joined: a later one is its own."""
    pod_ended_at: float = float("-inf")
    """Time of a later one that was seen while its stream was open: perhaps its own end."""
    rules: tuple[wire.FailureRule, ...] = ()
    """Failure rules that it was told: its reports give indices into them."""
    health: wire.HealthPolicy | None = None
    """The job's spec.health that it was told."""
    welcomed_round: int = 0
    """Round of that Welcome: the agent's processes of it live on; 0: none do."""
    store: wire.StorePrepared | None = None
    """A store that waits for a round."""
    store_asked: str = ""
    store_failed: bool = False
    ranks: tuple[wire.RankProgress, ...] = ()
    """Newest report of its ranks; set by `note`."""
    ranks_at: float = 0.0
    ready_replica: int = 0
    """Number of the replica that its ranks are ready to be named as in a roster; 0: they are not,
    or there are no replicas."""
    saving: wire.SavingReport | None = None
    """Newest report of its ranks on their checkpoints; None: they follow no schedule."""
    step: int = 0
    """Newest step that all its ranks have reported; 0: none or not known."""
    stalled: bool = False
    samples: int = 0
    """Samples of all its ranks at the last report."""
    samples_per_second: float = 0.0

    @property
    def pulse(self) -> Pulse:
        """The values that liveness is judged by."""
        return Pulse(
            connected=self.session is not None,
            last_heard=self.last_heard,
            disconnected_at=self.disconnected_at,
            heartbeat=self.heartbeat,
        )

    @property
    def candidate(self) -> Candidate:
        """The node as a member of a world to come."""
        topology = self.hello.topology if self.hello else {}
        return Candidate(
            node_rank=self.rank,
            agent_id=self.agent_id,
            local_world_size=self.local_world_size,
            topology=tuple(sorted(topology.items())),
        )

    def evidence(self, kind: EvidenceKind, text: str, at: float) -> Evidence:
        """Return evidence about this node."""
        return Evidence(kind=kind, text=text, at=at, node_rank=self.rank, agent_id=self.agent_id)

    def marked(self, mark: str, cause: str = "") -> wire.NodeMarked:
        """The fact that a mark is set."""
        return wire.NodeMarked(
            node_rank=self.rank, agent_id=self.agent_id, mark=mark, value=True, cause=cause
        )

    def note(self, ranks: tuple[wire.RankProgress, ...]) -> None:
        """Keep what its ranks do; nothing: they do not run."""
        self.ranks = ranks
        self.step = min([reported_step(item) for item in ranks], default=0)


@dataclasses.dataclass(slots=True, eq=False)
class Membership:
    """All present nodes by node rank. Times are on the patient clock, s."""

    nodes: dict[int, Node] = dataclasses.field(default_factory=dict)
    sessions: dict[int, int] = dataclasses.field(default_factory=dict)
    """Session to node rank."""
    candidates: set[int] = dataclasses.field(default_factory=set)
    """Nodes that are eligible for a world."""
    spares: set[int] = dataclasses.field(default_factory=set)
    """Candidates outside the newest world."""
    within: set[int] = dataclasses.field(default_factory=set)
    """Candidates whose ranks the spec asks for: counted at every event while some are beyond."""
    beyond: set[int] = dataclasses.field(default_factory=set)
    """Present nodes whose ranks the spec does not ask for any more."""
    surplus: set[int] = dataclasses.field(default_factory=set)
    """Those of them that do not stand in for a wanted rank that is missing."""
    away: set[int] = dataclasses.field(default_factory=set)
    """Present in the journal or a moment ago, without a stream, not lost."""
    quiet: set[int] = dataclasses.field(default_factory=set)
    """With a stream, but several heartbeats are missing."""
    release_overdue: bool = False
    """The time that was promised for the last reduction is over: surplus nodes go although no
    smaller world trains yet."""
    enough_since: float | None = None
    """Time since which there are enough nodes for the least world; None: there are not."""
    spare_since: float | None = None
    """Time since which there is a node that the world could grow by; None: there is none."""
    returned_at: float = float("-inf")
    """Time at which the latest node that only the journal knew came back."""
    failure_cap: int | None = None
    """Least --max-restarts that any agent has named; None: none has."""
    heartbeat: float = 0.0
    """Interval that agents are given, s."""

    def add(self, node: Node) -> None:
        """Take a node that is present now."""
        self.nodes[node.rank] = node
        self.attach(node, node.session)

    def attach(self, node: Node, session: int | None) -> None:
        """Give the node this stream; None: it has none."""
        if node.session is not None:
            self.sessions.pop(node.session, None)
        node.session = session
        self.quiet.discard(node.rank)
        if session is None:
            self.away.add(node.rank)
        else:
            self.sessions[session] = node.rank
            self.away.discard(node.rank)

    def remove(self, node: Node) -> None:
        """Forget a node that is gone."""
        if node.session is not None:
            self.sessions.pop(node.session, None)
        del self.nodes[node.rank]
        for ranks in (self.candidates, self.away, self.quiet):
            ranks.discard(node.rank)
        for ranks in (self.spares, self.beyond, self.within, self.surplus):
            ranks.discard(node.rank)

    def agent(self, rank: int, agent_id: str) -> Node | None:
        """The node of this rank, if it is still this agent."""
        node = self.nodes.get(rank)
        return node if node is not None and node.agent_id == agent_id else None

    def present(self, ranks: Iterable[int]) -> list[Node]:
        """The nodes of these ranks that are there."""
        return [self.nodes[rank] for rank in ranks if rank in self.nodes]

    def reports(self, ranks: Iterable[int]) -> Iterator[tuple[Node, wire.RankProgress]]:
        """Yield the newest reports of the processes of these nodes."""
        return ((node, item) for node in self.present(ranks) for item in node.ranks)

    def by_session(self, session: int) -> Node | None:
        """The node whose stream this is."""
        rank = self.sessions.get(session)
        return None if rank is None else self.nodes[rank]

    def note_received(self, node: Node, now: float) -> bool:
        """Note a message of a node; return whether it had been silent for long."""
        node.last_heard = now
        was = node.rank in self.quiet
        self.quiet.discard(node.rank)
        return was

    def connected(self) -> int:
        """The number of open streams of present nodes."""
        return len(self.sessions)

    def cap(self, limit: int | None) -> None:
        """Take an agent's --max-restarts."""
        if limit is not None:
            self.failure_cap = limit if self.failure_cap is None else min(self.failure_cap, limit)

    def note_beyond(self, rank: int, *, beyond: bool) -> None:
        """Note whether the spec does not ask for a present node's rank any more."""
        if beyond:
            self.beyond.add(rank)
        else:
            self.beyond.discard(rank)
            self.surplus.discard(rank)

    def note_candidate(self, rank: int, *, fit: bool, within: bool, spare: bool) -> bool:
        """Note whether a present node is a candidate; return whether that has changed.

        within: the spec asks for its rank. spare: the newest world does without it.
        """
        was = rank in self.candidates
        (self.candidates.add if fit else self.candidates.discard)(rank)
        (self.within.add if fit and within else self.within.discard)(rank)
        (self.spares.add if fit and spare else self.spares.discard)(rank)
        return fit is not was
