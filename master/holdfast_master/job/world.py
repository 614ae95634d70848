"""The newest world while it lives: who has started, stepped, saved, finished.

Belongs here: what members report about one round. Does not belong here: why it was decided
(`rounds`), what must survive the master (`state`).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Iterable

from holdfast_master.decide.rendezvous import Bounds
from holdfast_wire.messages import WorldDecided, WorldMember


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """One node's place."""

    group_rank: int
    base_rank: int
    """Global rank of its local rank 0."""
    member: WorldMember


@dataclasses.dataclass(slots=True)
class World:
    """One round's world, as far as its members have told."""

    fact: WorldDecided
    bounds: Bounds | None = None
    """Allowed sizes when it was decided; None: an earlier master decided it."""
    places: dict[int, Place] = dataclasses.field(init=False)
    size: int = dataclasses.field(init=False)
    """Processes."""
    highest: int = dataclasses.field(init=False)
    """Highest node rank."""
    assigned: bool = False
    store_id: str = ""
    started: set[int] = dataclasses.field(default_factory=set)
    stepped: set[int] = dataclasses.field(default_factory=set)
    saved: dict[int, int] = dataclasses.field(default_factory=dict)
    """Node rank to the step at which all its ranks saved and ended."""
    finished: set[int] = dataclasses.field(default_factory=set)
    done: dict[int, set[int]] = dataclasses.field(default_factory=dict)
    """Node rank to the local ranks that ended with exit code 0."""
    ranks_done: int = 0
    rank0_done: bool = False
    training: bool = False
    degraded: bool = False
    """It counts as training although no first step was reported."""
    first_step: int = 0
    """Step number of the first step; 0: not known."""
    reached: int = 0
    """Newest step that any rank reported as completed."""
    marked: int = 0
    """Newest step that was written to the journal."""
    sdk_ranks: int = 0
    step_seconds: float = 0.0
    """Smoothed time of a step, s; 0: not known."""

    def __post_init__(self) -> None:
        self.places = {}
        base = 0
        for group_rank, member in enumerate(self.fact.members):
            self.places[member.node_rank] = Place(group_rank, base, member)
            base += member.local_world_size
        self.size = base
        self.highest = max(self.places, default=-1)

    @property
    def round(self) -> int:
        """Its number."""
        return self.fact.round

    def holds(self, rank: int, agent_id: str) -> bool:
        """Whether this very agent is a member."""
        place = self.places.get(rank)
        return place is not None and place.member.agent_id == agent_id

    def finish(self, rank: int, local_rank: int) -> bool:
        """A process ended with exit code 0; True: it was the node's last."""
        place = self.places[rank]
        done = self.done.setdefault(rank, set())
        if local_rank not in done:
            done.add(local_rank)
            self.ranks_done += 1
            self.rank0_done |= place.base_rank + local_rank == 0
        if len(done) < place.member.local_world_size or rank in self.finished:
            return False
        self.finished.add(rank)
        return True

    def finish_node(self, rank: int) -> None:
        """All processes of a node are known to have ended with exit code 0."""
        place = self.places.get(rank)
        if place is not None:
            for local_rank in range(place.member.local_world_size):
                self.finish(rank, local_rank)

    def all_started(self) -> bool:
        """Whether every node's processes run."""
        return len(self.started) == len(self.places)

    def all_stepped(self) -> bool:
        """Whether every node's ranks completed a step, or ended well without one."""
        return self._all_in(self.stepped)

    def all_saved(self) -> bool:
        """Whether every node saved and stopped, or had finished."""
        return self._all_in(self.saved)

    def _all_in(self, told: Collection[int]) -> bool:
        """Whether every node has told so or finished."""
        # Asked at each word of ten thousand nodes: they are united only where they may suffice.
        if len(told) + len(self.finished) < len(self.places):
            return False
        return len(self.finished.union(told)) == len(self.places)

    def learn_pace(self, step_seconds: float) -> None:
        """Smooth the step time with one more report."""
        if step_seconds > 0:
            old = self.step_seconds
            self.step_seconds = step_seconds if old == 0 else old + 0.2 * (step_seconds - old)


def world_hash(epoch: int, group: int, round_number: int, members: Iterable[WorldMember]) -> str:
    """SHA-256 over epoch, group, round and the members in rank order with their agent ids, hex."""
    digest = hashlib.sha256(f"{epoch}/{group}/{round_number}".encode())
    for member in members:
        digest.update(f"/{member.node_rank}:{member.agent_id}:{member.local_world_size}".encode())
    return digest.hexdigest()
