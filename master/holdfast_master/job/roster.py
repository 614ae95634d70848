"""The nodes as their agents present themselves now.

Belongs here: sessions, what an agent said last, which nodes could be in a world. Does not belong
here: what must survive the master (`state`), and decisions.
"""

from __future__ import annotations

import dataclasses

from holdfast_master.decide.failure import EvidenceKind
from holdfast_master.decide.liveness import Pulse
from holdfast_master.decide.rendezvous import Candidate
from holdfast_wire.messages import Hello, RankProgress, SavingReport, StorePrepared


@dataclasses.dataclass(slots=True, kw_only=True)
class Node:
    """One agent, from its first hello until it is gone. Times are on the patient clock, s."""

    rank: int
    agent_id: str
    pod_uid: str
    local_world_size: int
    hello: Hello | None
    """None: known from the journal, not back yet."""
    session: int | None
    last_heard: float
    disconnected_at: float
    heartbeat: float
    warm: bool = False
    cold_reason: str = ""
    away_told: bool = False
    """The end of its stream was news."""
    draining: EvidenceKind | None = None
    """Why it is to leave; None: it is not."""
    over: bool = False
    """Its torchrun said that it has no restarts left: it is on its way out, or out."""
    condemned: bool = False
    """It is to leave because a failure rule says so: its end explains nothing."""
    replace_why: str = ""
    """Why a new agent is wanted once this one is released; empty: it is not."""
    pod_ends: int = 0
    """Ends of its pod's container that were known when it joined: a later one is its own."""
    pod_ended_at: float = float("-inf")
    """When a later one was seen while its stream was open: perhaps its own, perhaps told late."""
    patterns: tuple[str, ...] = ()
    """Log patterns of the Welcome that it got: its reports give indices into them."""
    store: StorePrepared | None = None
    """A store that waits for a round."""
    store_asked: str = ""
    store_failed: bool = False
    ranks: tuple[RankProgress, ...] = ()
    """What its ranks said last; set by `note`."""
    ranks_at: float = 0.0
    saving: SavingReport | None = None
    """What its ranks said last of their checkpoints; None: they follow no schedule of ours."""
    step: int = 0
    """Newest step that all its ranks have completed; 0: none or not known."""
    stalled: bool = False
    samples: int = 0
    """Of all its ranks at the last report."""
    samples_per_second: float = 0.0

    @property
    def pulse(self) -> Pulse:
        """What liveness is judged by."""
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

    def note(self, ranks: tuple[RankProgress, ...]) -> None:
        """Keep what its ranks do; nothing: they do not run."""
        self.ranks = ranks
        self.step = min([item.step for item in ranks], default=0)


class Roster:
    """All present nodes by node rank, with the sets that decisions need without a scan."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.sessions: dict[int, int] = {}
        """Session to node rank."""
        self.candidates: set[int] = set()
        self.away: set[int] = set()
        """Present in the journal or a moment ago, without a stream, not lost."""
        self.quiet: set[int] = set()
        """With a stream, but several heartbeats are missing."""
        self.returned_at = float("-inf")
        """When the latest node that only the journal knew came back, patient clock, s."""
        self.failure_cap: int | None = None
        """Least --max-restarts that any agent has named."""

    def add(self, node: Node) -> None:
        """A node is present."""
        self.nodes[node.rank] = node
        self.attach(node, node.session)

    def attach(self, node: Node, session: int | None) -> None:
        """The node's stream is now this one, or none."""
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
        """The node is gone."""
        if node.session is not None:
            self.sessions.pop(node.session, None)
        del self.nodes[node.rank]
        for ranks in (self.candidates, self.away, self.quiet):
            ranks.discard(node.rank)

    def by_session(self, session: int) -> Node | None:
        """The node whose stream this is."""
        rank = self.sessions.get(session)
        return None if rank is None else self.nodes[rank]

    def connected(self) -> int:
        """Number of open streams of present nodes."""
        return len(self.sessions)

    def cap(self, limit: int | None) -> None:
        """An agent's --max-restarts."""
        if limit is not None:
            self.failure_cap = limit if self.failure_cap is None else min(self.failure_cap, limit)
