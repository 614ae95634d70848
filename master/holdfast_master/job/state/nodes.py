"""A node as its agent presents itself now.

Belongs here: what the agent said last, and what the master made of it. Does not belong here: all
nodes together (`membership`), the facts that survive the master (`job_state`), decisions.
"""

from __future__ import annotations

import dataclasses

from holdfast_master.policies.failure import EvidenceKind
from holdfast_master.policies.guessed_steps import reported_step
from holdfast_master.policies.liveness import Pulse
from holdfast_master.policies.rendezvous import Candidate
from holdfast_wire.messages import FailureRule, Hello, RankProgress, SavingReport, StorePrepared


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
    rules: tuple[FailureRule, ...] = ()
    """Failure rules of the Welcome that it got: its reports give indices into them."""
    store: StorePrepared | None = None
    """A store that waits for a round."""
    store_asked: str = ""
    store_failed: bool = False
    ranks: tuple[RankProgress, ...] = ()
    """Newest report of its ranks; set by `note`."""
    ranks_at: float = 0.0
    ready_replica: int = 0
    """Number of the replica that its ranks are ready to be named as in a roster; 0: they are not,
    or there are no replicas."""
    saving: SavingReport | None = None
    """Newest report of its ranks on their checkpoints; None: they follow no schedule."""
    step: int = 0
    """Newest step that all its ranks have reported; 0: none or not known."""
    stalled: bool = False
    samples: int = 0
    """Samples of all its ranks at the last report."""
    samples_per_second: float = 0.0

    @property
    def pulse(self) -> Pulse:
        """Return the values that liveness is judged by."""
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
        self.step = min([reported_step(item) for item in ranks], default=0)
