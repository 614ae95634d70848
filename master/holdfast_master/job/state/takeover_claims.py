"""Reports of agents about a world that this master does not know."""

from __future__ import annotations

import collections
import dataclasses

from holdfast_master.inputs import AgentMessage
from holdfast_wire.messages import Fence, Hello, OuterRoster, StateDigest, WorldAssignment

Claimed = list[tuple[Hello, WorldAssignment]]
"""Nodes of a world or a replica in rank order, each with its place."""
_MOST_REPORTS = 100
"""Reports for each rank of a node, some of which are of the node: an agent with more is not in its
senses, and what it says beyond them is dropped."""


@dataclasses.dataclass(frozen=True, slots=True)
class DeferredReport:
    """A report about a claimed world, heard before it was known what becomes of that."""

    node_rank: int
    agent_id: str
    fence: Fence | None
    message: AgentMessage


@dataclasses.dataclass(slots=True)
class Claims:
    """Hellos of agents whose processes run in a world that the journal does not name."""

    hellos: dict[int, Hello] = dataclasses.field(default_factory=dict)
    """By node rank."""
    top: tuple[int, str] = (0, "")
    """Round and hash of the newest world that is claimed."""
    size: int = 0
    """Nodes of it, as one of its claimants says; 0: none is claimed."""
    epoch: int = 0
    """Epoch of the newest master that its claimants know; 0: they know none."""
    followed: dict[int, int] = dataclasses.field(default_factory=dict)
    """Node rank to the epoch of the newest master that its agent has accepted."""
    newest_followed: int = 0
    """The newest such epoch of a claimant of the world."""
    roster: OuterRoster | None = None
    """The newest that claimants know; None: none of them is of a replica."""
    roster_followed: int = 0
    """The newest epoch of a master that they follow."""
    digest: StateDigest | None = None
    """The newest that any agent brought."""
    event_floor: int = 0
    """Events of the earlier master have numbers up to this."""
    held: list[DeferredReport] = dataclasses.field(default_factory=list)
    """Reports of claimants since their hellos, oldest first."""
    held_of: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    """How many of them are of each node, by node rank."""
    settled: bool = False
    """It is decided what becomes of them."""

    def hold(self, report: DeferredReport) -> bool:
        """Keep a report of a claimant, before the claims are settled; False: it is none."""
        hello = self.hellos.get(report.node_rank)
        if hello is None or hello.agent_id != report.agent_id:
            return False
        if self.held_of[hello.node_rank] < _MOST_REPORTS * max(1, hello.local_world_size):
            self.held.append(report)
            self.held_of[hello.node_rank] += 1
        return True

    def keep_digest(self, digest: StateDigest | None) -> None:
        """Keep the newer of two digests."""
        if digest is not None and _age(digest) > _age(self.digest):
            self.digest = digest

    def keep(self, hello: Hello) -> None:
        """Keep a claim; the node's earlier one does not count any more."""
        before = self.hellos.get(hello.node_rank)
        self.hellos[hello.node_rank] = hello
        if hello.assignment is not None and hello.assignment.replica:
            self._follow(hello, hello.assignment)
            return
        if before is None or _claimed(before) == _claimed(hello):
            self._rise(hello)
            return
        self.top, self.size, self.epoch, self.newest_followed = (0, ""), 0, 0, 0
        for known in self.hellos.values():
            self._rise(known)

    def _rise(self, hello: Hello) -> None:
        if hello.assignment is None:
            return
        claimed, epoch = _claimed(hello), _epoch(hello)
        followed = self.followed.get(hello.node_rank, 0)
        if claimed == self.top:
            self.epoch = max(self.epoch, epoch)
            self.newest_followed = max(self.newest_followed, followed)
        elif epoch > self.epoch > 0 or (
            self._is_newer(claimed, followed) and not self.epoch > epoch > 0
        ):
            self.top, self.size, self.epoch = claimed, hello.assignment.group_world_size, epoch
            self.newest_followed = followed

    def _follow(self, hello: Hello, place: WorldAssignment) -> None:
        """Keep the newest roster, of the newest master: one without memory counts anew."""
        roster, followed = place.roster, self.followed.get(hello.node_rank, 0)
        known = self.roster.epoch if self.roster is not None else 0
        if roster is not None and (followed, roster.epoch) > (self.roster_followed, known):
            self.roster, self.roster_followed, self.size = roster, followed, place.group_world_size

    def members_of(self, roster: OuterRoster) -> dict[int, Claimed]:
        """The replicas of a roster of which all nodes are back and know it, by number."""
        found: dict[tuple[int, int, str], dict[int, tuple[Hello, WorldAssignment]]] = {}
        for hello, place in self._places():
            if place.roster == roster and place.replica in roster.replicas:
                key = (place.replica, hello.round, place.world_hash)
                found.setdefault(key, {})[place.group_rank] = (hello, place)
        return {
            number: [nodes[rank] for rank in range(len(nodes))]
            for (number, _, _), nodes in sorted(found.items(), key=lambda one: one[0])
            if all(len(nodes) == place.group_world_size for _, place in nodes.values())
            and sorted(nodes) == list(range(len(nodes)))
        }

    def _is_newer(self, claimed: tuple[int, str], followed: int) -> bool:
        """Whether a world is the newer one by its number.

        Of two with one number an agent that knows no newer master cannot run the newer one.
        """
        (number, world), (top, other) = claimed, self.top
        return (number, followed, world) > (top, self.newest_followed, other)

    def whole(self) -> Claimed | None:
        """The newest claimed world's members in rank order; None: some have not said hello."""
        # Asked at every hello: those of ten thousand are looked through once they may be all.
        if len(self.hellos) < self.size:
            return None
        members = {
            place.group_rank: (hello, place)
            for hello, place in self._places()
            if _claimed(hello) == self.top
        }
        size = max((place.group_world_size for _, place in members.values()), default=0)
        if not size or sorted(members) != list(range(size)):
            return None
        return [members[rank] for rank in range(size)]

    def _places(self) -> Claimed:
        return [(hello, hello.assignment) for hello in self.hellos.values() if hello.assignment]


def _claimed(hello: Hello) -> tuple[int, str]:
    return hello.round, hello.assignment.world_hash if hello.assignment else ""


def _epoch(hello: Hello) -> int:
    """Epoch of the newest master that the claimed world is known to have had; 0: not known.

    Masters without a journal count rounds anew: the higher number may be the older world's.
    """
    digest = hello.digest
    if digest is None or digest.fence is None or hello.node_rank not in digest.world_members:
        return 0
    return digest.fence.epoch if digest.fence.round == hello.round else 0


def _age(digest: StateDigest | None) -> tuple[int, int]:
    if digest is None:
        return (-1, -1)
    epoch = digest.fence.epoch if digest.fence is not None else 0
    return (epoch, digest.sequence)
