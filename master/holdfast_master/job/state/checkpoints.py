"""Checkpoints as agents report them: in memory, on their way to storage, at a start.

Fields that must survive the master stand in `job_state`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from holdfast_master.job.state.orders import OfferedSchedule, SaveOrder
from holdfast_master.job.state.world import World
from holdfast_master.policies.flush import Copy, Holder
from holdfast_master.policies.interval import Every, IntervalVerdict
from holdfast_wire.messages import CheckpointVersion as Version
from holdfast_wire.messages import PartSource, RestorePlan, RestoreRequest, Tier

_DONE = 64
"""Ends of commits that are remembered for agents which did not hear of them."""


@dataclasses.dataclass(slots=True, kw_only=True)
class PendingStep:
    """A step on its way to storage."""

    version: Version
    attempt: str
    world_size: int
    root: str
    ranks: set[int] = dataclasses.field(default_factory=set)
    """Ranks whose parts are durable."""
    nodes: set[int] = dataclasses.field(default_factory=set)
    """Nodes that wrote them."""
    bytes: dict[int, int] = dataclasses.field(default_factory=dict)
    """Size of the parts by node."""
    coordinator: Holder | None = None
    """Node rank and agent that were granted the commit."""
    own: str = ""
    """The coordinator's name of the attempt."""
    granted_at: float = 0.0
    """Time of the grant, patient clock, s."""
    silent: list[Holder] = dataclasses.field(default_factory=list)
    """Agents that live and did not answer their grant in time."""

    @property
    def whole(self) -> bool:
        """Every part is durable."""
        return len(self.ranks) == self.world_size > 0


@dataclasses.dataclass(slots=True, kw_only=True)
class Rescue:
    """Steps that are being written out of memory before its nodes go, or go apart."""

    started: float
    """Patient clock, s."""
    seconds: float
    """Time that it may take, s."""
    ending: bool
    """The job ends or is suspended; else a world of other nodes is to be formed."""
    awaited: Version | None = None
    """The version that is waited for."""
    ordered: Version | None = None
    """The version that the nodes were told to write."""
    attempt: str = ""
    """The attempt that they write to."""


@dataclasses.dataclass(slots=True)
class CheckpointTracker:
    """The checkpoints of the running world, and commits of any."""

    round: int = 0
    """The round that the fields about memory and origin are about."""
    members: tuple[Holder, ...] = ()
    """Its nodes in rank order."""
    ranks: int = 0
    """Its processes."""
    before: Copy | None = None
    """The version that was complete when the round began: in memory until all have started."""
    held: dict[int, frozenset[Version]] = dataclasses.field(default_factory=dict)
    """Versions in memory by node rank."""
    whole: set[int] = dataclasses.field(default_factory=set)
    """Nodes that have all that any world needs of each of them."""
    memory_only: set[Holder] = dataclasses.field(default_factory=set)
    """Members whose ranks named no directory for checkpoints."""
    counts: dict[Version, int] = dataclasses.field(default_factory=dict)
    """Nodes that hold each of them."""
    complete: Version | None = None
    """The newest that every node has in memory."""
    passed_over: set[Version] = dataclasses.field(default_factory=set)
    """Newer ones that some node has left out."""
    asked: dict[int, RestoreRequest] = dataclasses.field(default_factory=dict)
    """Nodes whose ranks wait to be told what to start from."""
    origin: RestorePlan | None = None
    """The plan that they were told to check, or to start from."""
    reason: str = ""
    """Reason of the choice."""
    sources: dict[int, tuple[PartSource, ...]] = dataclasses.field(default_factory=dict)
    """By node, whose memory it reads what it lacks from."""
    checked: set[int] = dataclasses.field(default_factory=set)
    """Nodes that found their share of it intact."""
    damaged: set[tuple[Version, Tier]] = dataclasses.field(default_factory=set)
    """Copies that some node found damaged."""
    notes: list[str] = dataclasses.field(default_factory=list)
    pending: dict[tuple[Version, str], PendingStep] = dataclasses.field(default_factory=dict)
    """By version and attempt."""
    done: dict[tuple[Version, str], str] = dataclasses.field(default_factory=dict)
    """The newest ends: the error, empty where it was committed."""
    rescue: Rescue | None = None
    rescued: set[tuple[int, bool]] = dataclasses.field(default_factory=set)
    """(round, for the job's end) whose rescue is over, whatever came of it."""
    lost: Version | None = None
    """The newest that was said to be lost."""

    @property
    def waits(self) -> bool:
        """Whether ranks wait to be told what to start from, and no plan is made yet."""
        return bool(self.asked) and self.origin is None

    @property
    def memory(self) -> Copy | None:
        """The newest that every node of its world has, or had, in memory."""
        if self.complete is None:
            return self.before
        return Copy(
            version=self.complete,
            holders=self.members,
            ranks=self.ranks,
            whole=[one for one in self.members if one[0] in self.whole],
            memory_only=bool(self.memory_only),
        )

    def enter(self, round_number: int, members: tuple[Holder, ...], ranks: int) -> None:
        """Forget what was about another round, but for what its memory still has."""
        if round_number == self.round and members[:1] == self.members[:1]:
            return  # replicas that begin together are told apart by their first node
        self.before = self.memory
        self.round, self.members, self.ranks = round_number, members, ranks
        self.held, self.counts, self.complete, self.passed_over = {}, {}, None, set()
        self.whole = set()
        self.memory_only &= set(members)
        self.asked, self.origin, self.reason = {}, None, ""
        self.sources, self.checked = {}, set()
        self.damaged, self.notes = set(), []

    def hold(self, rank: int, versions: frozenset[Version], size: int) -> bool:
        """Note what a node has in memory; return whether the others are to hear what follows.

        size: nodes of the world. Costs the number of versions, and for a version that is new the
        number of nodes once.
        """
        before = (self.complete, frozenset(self.passed_over))
        fresh = versions - self.counts.keys()
        self._count(self.held.get(rank, frozenset()), versions)
        self.held[rank] = versions
        self._pass_over(versions, self.counts)
        for own in self.held.values() if fresh else ():
            self._pass_over(own, fresh)
        newest = max((one for one in versions if self.counts[one] >= size), default=None)
        if newest is not None and (self.complete is None or newest > self.complete):
            self.complete = newest
        floor = self._floor()
        if floor is not None:
            self.passed_over = {one for one in self.passed_over if one > floor}
        return (self.complete, frozenset(self.passed_over)) != before

    def _floor(self) -> Version | None:
        """The copy that stays in memory until a newer one is complete, with its holders."""
        if self.complete is not None or self.before is None:
            return self.complete
        return self.before.version

    def _count(self, before: frozenset[Version], after: frozenset[Version]) -> None:
        for one in after - before:
            self.counts[one] = self.counts.get(one, 0) + 1
        for one in before - after:
            self.counts[one] -= 1
            if not self.counts[one]:
                del self.counts[one]

    def _pass_over(self, own: frozenset[Version], known: Iterable[Version]) -> None:
        newest = max(own, default=None)
        if newest is not None:
            self.passed_over |= {one for one in known if one < newest and one not in own}

    def started(self, origin: RestorePlan) -> None:
        """All nodes of the round start from this: memory has nothing else any more."""
        self.before = None
        if origin.tier is not Tier.MEMORY or origin.version is None:
            return
        parts = {
            node: part
            for node, said in self.asked.items()
            for part in said.parts
            if part.version == origin.version
        }
        self.before = Copy(
            version=origin.version,
            holders=tuple(one for one in self.members if not parts or one[0] in parts),
            ranks=max((part.world_size for part in parts.values()), default=self.ranks),
            whole=[one for one in self.members if one[0] in parts and parts[one[0]].whole],
            partial=origin.partial,
            memory_only=bool(self.memory_only),
            named=all(part.world for part in parts.values()),
        )

    @property
    def failed(self) -> frozenset[Version]:
        """The versions that could not be written or committed."""
        return frozenset(one for (one, _), error in self.done.items() if error)

    def committed_since(self, version: Version) -> bool:
        """Return True if this master itself has seen the version committed."""
        return any(one == version and not error for (one, _), error in self.done.items())

    def end(self, pending: PendingStep, error: str) -> None:
        """A step is committed, or will not be."""
        key = (pending.version, pending.attempt)
        self.pending.pop(key, None)
        self.done[key] = error
        while len(self.done) > _DONE:
            del self.done[next(iter(self.done))]


@dataclasses.dataclass(slots=True)
class SaveSchedule:
    """The schedule of the processes that save."""

    round: int = 0
    """In which they were started."""
    replica: int = 0
    """Number of their replica; 0: there are none."""
    now: Every | None = None
    """Intervals that every rank follows."""
    unsure: bool = False
    """An earlier master may have told them something else."""
    offer: OfferedSchedule | None = None
    verdict: IntervalVerdict | None = None
    """The newest, of this round."""

    def is_of(self, world: World) -> bool:
        """Whether it is the schedule of those that save in a world."""
        return (self.replica, self.round) == (world.saver_replica, world.saver_round)


@dataclasses.dataclass(slots=True, eq=False)
class Checkpoints:
    """The known checkpoints, their intervals, and a requested save."""

    tracker: CheckpointTracker = dataclasses.field(default_factory=CheckpointTracker)
    starts: dict[int, CheckpointTracker] = dataclasses.field(default_factory=dict)
    """Starts of replicas by number, which begin while others start, train and save."""
    """Versions in memory and on storage, as agents reported."""
    schedule: SaveSchedule = dataclasses.field(default_factory=SaveSchedule)
    """The intervals of the running world."""
    order: SaveOrder | None = None
    """A checkpoint that somebody asked for; None: nobody waits for one."""
