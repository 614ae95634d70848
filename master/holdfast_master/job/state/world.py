"""The newest decided and the newest assigned world, and the progress of their members."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Collection, Iterable

from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.orders import Barrier
from holdfast_master.policies.flush import Holder
from holdfast_master.policies.rendezvous import Bounds
from holdfast_wire.messages import RankEvidence, WorldDecided, WorldMember, WorldReplica


@dataclasses.dataclass(frozen=True, slots=True)
class WorldMemberState:
    """One node's place."""

    group_rank: int
    """Among the nodes of its replica, or of the world where there are no replicas."""
    base_rank: int
    """Global rank of its local rank 0, as torch counts: in its replica, or in the world."""
    member: WorldMember
    first: int
    """Number of its local rank 0 among the processes of all replicas."""
    replica: WorldReplica
    """With all members and number 0 where there are no replicas."""
    nodes: int
    """Of its replica, or of the world."""
    size: int
    """Processes of its replica, or of the world."""
    index: int
    """Among all members."""


@dataclasses.dataclass(slots=True)
class World:
    """One round's world, as far as its members have told."""

    fact: WorldDecided
    bounds: Bounds | None = None
    """Allowed sizes when it was decided; None: an earlier master decided it."""
    places: dict[int, WorldMemberState] = dataclasses.field(init=False)
    size: int = dataclasses.field(init=False)
    """Processes."""
    highest: int = dataclasses.field(init=False)
    """Highest node rank."""
    by_replica: dict[int, tuple[int, ...]] = dataclasses.field(init=False)
    """Number of a replica to its node ranks, in rank order; 0 where there are no replicas."""
    starting: tuple[int, ...] = dataclasses.field(init=False)
    """Node ranks whose processes start with this round, in rank order."""
    savers: tuple[int, ...] = dataclasses.field(init=False)
    """Node ranks whose checkpoints are the job's, in rank order: the first replica's, or all."""
    assigned: bool = False
    store_ids: dict[int, str] = dataclasses.field(default_factory=dict)
    """Number of a replica to the id of its store, 0 where there are no replicas; as far as this
    master has assigned it."""
    awaits_stores: set[int] = dataclasses.field(default_factory=set)
    """Node ranks that are to report a store before the world is assigned."""
    disturbed: set[int] = dataclasses.field(default_factory=set)
    """Node ranks of which a process has failed, or that are gone."""
    started: set[int] = dataclasses.field(default_factory=set)
    stepped: set[int] = dataclasses.field(default_factory=set)
    saved: dict[int, int] = dataclasses.field(default_factory=dict)
    """Node rank to the step at which all its ranks saved and ended."""
    finished: set[int] = dataclasses.field(default_factory=set)
    done: dict[int, set[int]] = dataclasses.field(default_factory=dict)
    """Node rank to the local ranks that ended with exit code 0."""
    ended: dict[int, set[int]] = dataclasses.field(default_factory=dict)
    """Node rank to the local ranks whose end was reported, whatever the exit code."""
    unexplained: dict[int, set[int]] = dataclasses.field(default_factory=dict)
    """Node rank to the local ranks that do not run and whose end was not reported."""
    ranks_done: int = 0
    rank0_done: bool = False
    training: bool = False
    trains_since: float = -math.inf
    """Time since which it counts as training, patient clock, s; minus infinity: an earlier master
    saw it begin, so that its start is taken to be over."""
    degraded: bool = False
    """It counts as training although no first step was reported."""
    sdk_since: float = math.inf
    """Time at which the SDK was first seen in a degraded world, patient clock, s."""
    first_step: int = 0
    """Step number of the first step; 0: not known."""
    reached: int = 0
    """Newest step that any rank reported as completed."""
    marked: int = 0
    """Newest step that was written to the journal."""
    sdk_ranks: int = 0
    guessed: dict[int, float] = dataclasses.field(default_factory=dict)
    """Node rank to the time at which all its ranks had a guessed step, patient clock, s."""
    step_seconds: float = 0.0
    """Smoothed time of a step, s; 0: not known."""

    def __post_init__(self) -> None:
        self._arrange()

    def assign(self, fact: WorldDecided, store_ids: dict[int, str]) -> None:
        """Take the decision with the stores of those that start; from now on it is assigned."""
        self.fact, self.assigned, self.store_ids = fact, True, store_ids
        self._arrange()

    def _arrange(self) -> None:
        self.places, self.by_replica, self.size = {}, {}, 0
        members = iter(self.fact.members)
        for replica in self.fact.replicas or (self._whole(),):
            self._place(replica, list(itertools.islice(members, replica.nodes)))
        self.highest = max(self.places, default=-1)
        ranks, replicas = tuple(self.places), self.replicas
        self.starting = self.savers = ranks
        if replicas:
            self.starting = tuple(rank for rank in ranks if self.round_of(rank) == self.round)
            self.savers = self.members_of(replicas[0])

    def _whole(self) -> WorldReplica:
        """Return all members as one."""
        fact = self.fact
        return WorldReplica(
            number=0,
            round=fact.round,
            nodes=len(fact.members),
            store_host=fact.store_host,
            store_port=fact.store_port,
            world_hash=fact.world_hash,
        )

    def _place(self, replica: WorldReplica, members: list[WorldMember]) -> None:
        size, base = sum(member.local_world_size for member in members), 0
        self.by_replica[replica.number] = tuple(member.node_rank for member in members)
        for group_rank, member in enumerate(members):
            self.places[member.node_rank] = WorldMemberState(
                group_rank=group_rank,
                base_rank=base,
                member=member,
                first=self.size + base,
                replica=replica,
                nodes=len(members),
                size=size,
                index=len(self.places),
            )
            base += member.local_world_size
        self.size += size

    def nodes_by_rank(self) -> dict[int, int]:
        """The node rank of each global rank."""
        return {
            place.base_rank + local: node
            for node, place in self.places.items()
            for local in range(place.member.local_world_size)
        }

    @property
    def ended_ranks(self) -> tuple[int, ...]:
        """Global ranks whose process has ended with exit code 0."""
        return tuple(
            self.places[node].base_rank + local
            for node, done in self.done.items()
            for local in sorted(done)
        )

    @property
    def round(self) -> int:
        """Its number."""
        return self.fact.round

    @property
    def replicas(self) -> tuple[WorldReplica, ...]:
        """Parts of it with worlds of their own, by number; empty: it is one world."""
        return self.fact.replicas

    def round_of(self, rank: int) -> int:
        """The round in which a member's processes were started.

        It is an earlier one for the replicas that a change has left alone.
        """
        return self.places[rank].replica.round

    def is_about(self, rank: int | None, number: int) -> bool:
        """Whether word of a round is about this world: the member's own, or the world's."""
        own = rank is not None and rank in self.places and self.round_of(rank) == number
        return own or number == self.round

    def members_of(self, replica: WorldReplica) -> tuple[int, ...]:
        """The node ranks of a replica, in rank order."""
        return self.by_replica[replica.number]

    def saves(self, rank: int) -> bool:
        """Whether a member is one of the savers."""
        replicas = self.replicas
        return not replicas or self.places[rank].replica.number == replicas[0].number

    def covers(self, ranks: Collection[int]) -> bool:
        """Whether every saver has told, or has finished."""
        if not self.replicas:
            return self._all_in(ranks)
        return all(rank in ranks or rank in self.finished for rank in self.savers)

    @property
    def saver_round(self) -> int:
        """Round in which the savers were started."""
        return self.round_of(self.savers[0]) if self.places else self.round

    @property
    def saver_replica(self) -> int:
        """Number of the savers' replica; 0: there are none. Replicas may begin in one round."""
        return self.places[self.savers[0]].replica.number if self.places else 0

    def undisturbed(self) -> set[int]:
        """The node ranks of replicas of which nothing has failed: they train on."""
        lost = {self.places[rank].replica.number for rank in self.disturbed & self.places.keys()}
        going = (one for one in self.replicas if one.number not in lost)
        return {rank for one in going for rank in self.members_of(one)}

    @property
    def saver_size(self) -> int:
        """Processes of the savers."""
        return self.places[self.savers[0]].size if self.places else 0

    @property
    def holders(self) -> tuple[Holder, ...]:
        """The savers and their agents, in rank order."""
        return tuple((rank, self.places[rank].member.agent_id) for rank in self.savers)

    def holds(self, rank: int, agent_id: str) -> bool:
        """Whether this very agent is a member."""
        place = self.places.get(rank)
        return place is not None and place.member.agent_id == agent_id

    def has(self, node: Node) -> bool:
        """Whether a node's agent is a member."""
        return self.holds(node.rank, node.agent_id)

    def finish(self, rank: int, local_rank: int) -> bool:
        """A process ended with exit code 0; True: it was the node's last."""
        place = self.places[rank]
        done = self.done.setdefault(rank, set())
        if local_rank not in done:
            done.add(local_rank)
            self.ranks_done += 1
            self.rank0_done |= place.first + local_rank == 0
        if len(done) < place.member.local_world_size or rank in self.finished:
            return False
        self.finished.add(rank)
        return True

    def miss(self, rank: int, local_ranks: Collection[int]) -> bool:
        """Note processes that do not run; True: the end of one of them was not reported."""
        missing = set(local_ranks) - self.ended.get(rank, set())
        missing |= self.unexplained.get(rank, set())
        self.unexplained[rank] = missing
        return bool(missing)

    def explain(self, rank: int, local_rank: int) -> bool:
        """Note the reported end of a process; True: no process of its node is missed."""
        self.ended.setdefault(rank, set()).add(local_rank)
        missing = self.unexplained.get(rank, set())
        missing.discard(local_rank)
        return not missing

    def first_done(self) -> tuple[WorldMemberState, int] | None:
        """The place and the rank of the process that ended first with exit code 0."""
        node = next(iter(self.done), None)
        if node is None:
            return None
        place = self.places[node]
        return place, place.base_rank + min(self.done[node])

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

    @property
    def is_unseen(self) -> bool:
        """Whether it counts as training and no rank has reported a step or the SDK."""
        return self.training and not (self.first_step or self.reached or self.sdk_ranks)

    def all_guessed(self) -> bool:
        """Whether every node's ranks have a guessed step, or ended well without one."""
        return bool(self.guessed) and self._all_in(self.guessed)

    def all_saved(self) -> bool:
        """Whether every saver saved and stopped, or had finished."""
        return self.covers(self.saved)

    def disturb(self, rank: int | None) -> None:
        """Note that a member's processes cannot go on; None: nobody's can."""
        self.disturbed.update(self.places if rank is None else {rank} & self.places.keys())

    def follow(self, before: World) -> None:
        """Take what is known of the replicas that go on from the world before."""
        going = {rank for rank in self.places if self.round_of(rank) != self.round}
        for mine, its in (
            (self.started, before.started),
            (self.stepped, before.stepped),
            (self.finished, before.finished),
        ):
            mine.update(its & going)
        for own, known in (
            (self.done, before.done),
            (self.ended, before.ended),
            (self.unexplained, before.unexplained),
        ):
            own.update({rank: set(ranks) for rank, ranks in known.items() if rank in going})
        self.ranks_done = sum(map(len, self.done.values()))
        self.rank0_done = any(
            self.places[rank].first + local == 0 for rank, one in self.done.items() for local in one
        )
        if going:
            self.reached, self.sdk_ranks = before.reached, before.sdk_ranks
            self.first_step = before.reached + 1 if self.stepped else 0
            self.step_seconds, self.degraded = before.step_seconds, before.degraded

    def _all_in(self, ranks: Collection[int]) -> bool:
        """Whether every node is in `ranks` or has finished."""
        # Asked at each word of ten thousand nodes: they are united only where they may suffice.
        if len(ranks) + len(self.finished) < len(self.places):
            return False
        return len(self.finished.union(ranks)) == len(self.places)

    def learn_pace(self, step_seconds: float) -> None:
        """Smooth the step time with one more report."""
        if step_seconds > 0:
            old = self.step_seconds
            self.step_seconds = step_seconds if old == 0 else old + 0.2 * (step_seconds - old)


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenAt:
    """Where a replica stood that was put out of the roster."""

    step: int = 0
    epoch: int = 0
    """The last that it was in."""


@dataclasses.dataclass(frozen=True, slots=True)
class StopCost:
    """The cost of a stop of all ranks after a common step."""

    steps: int
    """That were done again."""
    whole: bool
    """They are all that the world did: its script saves nothing at all."""


@dataclasses.dataclass(slots=True)
class Inquiry:
    """A question to ranks of replicas, all of which stand still at one step."""

    number: int
    awaited: set[int] = dataclasses.field(default_factory=set)
    """Node ranks that have not answered."""
    evidence: dict[int, list[RankEvidence]] = dataclasses.field(default_factory=dict)
    """By replica."""
    early: bool = False
    """Asked before a wait could tell anything: only a process that is stopped or gone counts."""
    judged: bool = False
    blamed: bool = False
    """A replica was found that keeps the others waiting."""


@dataclasses.dataclass(slots=True, eq=False)
class Worlds:
    """The job's worlds as this master knows them."""

    newest: World | None = None
    """The newest decided world."""
    assigned: World | None = None
    """The newest world whose assignments are out; the same, or the one before."""
    broken: str = ""
    """Reason why the newest world cannot go on; empty: it can, or there is none."""
    recovering: bool = False
    """The last world was interrupted: the next one is not held up by the join window."""
    barrier: Barrier | None = None
    """The barrier after which the ranks of the running world stop; None: none is set."""
    newest_round_seen: int = 0
    """Newest round that any agent has named."""
    rescale_cost: float = 0.0
    """Measured pause of a rescale, s."""
    rescales_measured: bool = False
    """False: that is a guess."""
    last_stop: StopCost | None = None
    """The cost of the last stop after a common step; None: this master has seen none."""
    newest_epoch_seen: int = 0
    """Newest epoch of a roster that any agent's ranks were told."""
    strange_roster: bool = False
    """Ranks were told a roster that the newest one of this master does not follow."""
    unmet_epoch: int = 0
    """The newest epoch whose replicas could not meet; 0: none."""
    ready_since: float | None = None
    """Time since which a replica is ready while the newest roster has none that is; None: it has,
    or none is."""
    awaits_ready: set[int] = dataclasses.field(default_factory=set)
    """Node ranks that are not ready, while replicas that are wait for the others; empty: none
    waits."""
    inquiry: Inquiry | None = None
    """The question to ranks of replicas since they stand still; None: none."""
    frozen: dict[int, FrozenAt] = dataclasses.field(default_factory=dict)
    """By number, the replicas that keep others waiting; 0: all stand still, with the epoch in which
    they were to meet anew, or 0 once that was answered otherwise."""
    meet_anew: str = ""
    """Reason why the members of the newest roster are to meet anew; empty: there is none."""
    put_out_at: float = -math.inf
    """Time at which one of them was put out of the roster last: the others may go on since."""
    asked_early_at: float = -math.inf
    """Time of the newest early question to ranks."""
    parted: dict[int, float] = dataclasses.field(default_factory=dict)
    """Number of a replica to the time at which all its ranks had ended well; minus infinity: others
    could not meet since."""

    def running(self) -> World | None:
        """The world whose processes run and may go on; None: there is none."""
        world = self.newest
        return world if world is not None and world.assigned and not self.broken else None

    def saving(self) -> World | None:
        """The world whose savers run and go on.

        The running one; of replicas also the last one while the next one is made, since other
        replicas are lost.
        """
        world, last = self.running(), self.assigned
        if world is not None or last is None or not last.replicas:
            return world
        stopped = self.broken and not self.recovering
        return last if not stopped and last.undisturbed().issuperset(last.savers) else None

    def member(self, node: Node) -> World | None:
        """The running world, if this agent is in it."""
        world = self.running()
        return world if world is not None and world.has(node) else None

    def running_with(self, node: Node, number: int) -> World | None:
        """The running world, if it is the one that a member of it speaks of."""
        world = self.member(node)
        return world if world is not None and world.round_of(node.rank) == number else None

    def in_replica(self, rank: int, agent_id: str, number: int | None = None) -> World | None:
        """The world of an agent's replica, which may go on while no other world runs.

        number: a round; None is returned if it is not the agent's.
        """
        last = self.assigned
        if last is None or not last.replicas or not last.holds(rank, agent_id):
            return None
        return last if number in {None, last.round_of(rank)} else None

    def disturb(self, rank: int, agent_id: str, number: int | None = None) -> None:
        """Note that the processes of an agent, in round `number` if it is given, cannot go on."""
        for world in (self.newest, self.assigned):
            if world is None or not world.holds(rank, agent_id):
                continue
            if number is None or world.round_of(rank) == number:
                world.disturb(rank)

    def decide(self, world: World) -> None:
        """Take a world that was decided."""
        self.inquiry = None
        if self.assigned is not None and world.replicas:
            world.follow(self.assigned)
        self.newest, self.broken = world, ""

    def adopt(self, world: World) -> None:
        """Take a world that an earlier master assigned."""
        self.newest = self.assigned = world

    def end(self, why: str) -> None:
        """Note that the newest world cannot go on; its barrier is void."""
        self.broken, self.barrier, self.inquiry = why, None, None


def world_hash(epoch: int, group: int, round_number: int, members: Iterable[WorldMember]) -> str:
    """SHA-256 over epoch, group, round and the members in rank order with their agent ids, hex."""
    digest = hashlib.sha256(f"{epoch}/{group}/{round_number}".encode())
    for member in members:
        digest.update(f"/{member.node_rank}:{member.agent_id}:{member.local_world_size}".encode())
    return digest.hexdigest()
