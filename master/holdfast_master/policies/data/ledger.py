"""The ledger of one dataset: shards, leases of readers, and the way back to a step.

Belongs here: leases, progress, the loss of a reader, a restore, the end of an epoch. Does not
belong here: the order of shards within an epoch, which readers work out alike from a seed; who
counts as lost; the journal.

A shard of an epoch has a number, its *ordinal*: `epoch * shards + index`. Below `fresh` each
ordinal was leased once. Those that are neither open nor returned are done. So the ledger grows
with its readers, and not with the dataset.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from holdfast_wire import messages as wire

KEPT_CHANGES: Final = 200_000
"""Changes that are kept for a way back, of all replicas together: with 10,000 readers that report
each 30 s, ten minutes. A restore to an older step has what its checkpoint says alone."""
MOST_REPORTS_A_SECOND: Final = 100
"""Of all readers of replicas together: 3 % of a core. Ten of them report each step of 0.1 s."""
LONGEST_PROGRESS_SECONDS: Final = 30.0
"""Between two reports of a reader, s, however many there are: as agents do that are told nothing.
It is reached with 3,000."""
_READ_AGAIN: Final = "what other replicas than the one that saved had read is read again"


class Group(NamedTuple):
    """Readers that start and end together: those of a world, or of one of its replicas."""

    replica: int
    """Its number; 0: the world is one."""
    round: int
    """Round in which its processes began."""


class Reader(NamedTuple):
    """One process that leases shards."""

    group: Group
    rank: int
    """Rank within the group's world."""


class CommittedChange(NamedTuple):
    """A change by committed progress."""

    step: int
    """Step that it was committed with."""
    ordinal: int
    position: int
    """Next record before the change."""
    replica: int = 0
    """Number of the replica that committed it."""
    rank: int = 0
    """Rank in it."""


@dataclasses.dataclass(slots=True)
class Ledger:
    """Shards of one dataset; two ledgers with the same facts are equal."""

    name: str
    shards: int = 1
    """Number of shards; at least 1."""
    epochs: int = 1
    """Number of epochs; 0: without an end."""
    digest: str = ""
    """Names the list of shards, equal on all readers."""
    fresh: int = 0
    """First ordinal that was never leased."""
    returned: dict[int, int] = dataclasses.field(default_factory=dict)
    """Ordinals without a reader that are not done, with the next record of each."""
    open: dict[Reader, dict[int, int]] = dataclasses.field(default_factory=dict)
    """Leases of each reader: ordinals with the next record after its committed ones."""
    asked: dict[Reader, int] = dataclasses.field(default_factory=dict)
    """Number of each reader's newest request that was answered with a lease."""
    groups: dict[Group, int] = dataclasses.field(default_factory=dict)
    """Groups that have begun, with their numbers of readers."""
    leaving: dict[Group, frozenset[int]] = dataclasses.field(default_factory=dict)
    """Groups that are told to end, with their node ranks: until these are gone, their reports
    count, and nobody else is leased what they have."""
    lost: set[Group] = dataclasses.field(default_factory=set)
    """Groups that are lost: nobody else is leased what they have before others have told how far
    they had read, or have had the time to."""
    placed: bool = False
    """Others tell of readers that are lost."""
    newest: int = 0
    """Newest step that progress was committed with."""
    changes: list[CommittedChange] = dataclasses.field(default_factory=list)
    """Changes by replicas' progress, oldest first, for a restore."""
    forgotten: int = 0
    """Newest step whose change is not kept any more: no restore reaches a step before it."""
    late: int = 0
    """Reports about a shard that was not its sender's any more: they changed nothing."""

    # ------------------------------------------------------------------------------- looking

    @property
    def end(self) -> int | None:
        """First ordinal behind the last epoch; None: there is no last one."""
        return self.epochs * self.shards or None

    @property
    def left(self) -> int:
        """Shards that can be leased: of an endless dataset those of one epoch."""
        fresh = self.shards if self.end is None else max(0, self.end - self.fresh)
        return len(self.returned) + fresh

    @property
    def unread(self) -> int:
        """Shards that replicas leave, once all were leased.

        At its end a replica has told what it has done. What a world has open may have been read.
        """
        if self.end is None or self.fresh < self.end:
            return 0
        held = (len(leases) for reader, leases in self.open.items() if reader.group.replica)
        return len(self.returned) + sum(held)

    @property
    def floor(self) -> int:
        """First ordinal that may not be done: by the newest step all before it are.

        What a replica has told of the newest steps may be undone (`end_reading`).
        """
        held = (ordinal for leases in self.open.values() for ordinal in leases)
        unsure = (one.ordinal for one in self.changes if one.step >= self.newest - 1)
        return min([self.fresh, *self.returned, *held, *unsure])

    @property
    def epoch(self) -> int:
        """Epoch of the next fresh shard, from 0; the last one once all are leased."""
        last = self.epochs - 1 if self.epochs else self.fresh
        return min(self.fresh // self.shards, last)

    def held(self, reader: Reader) -> dict[int, int]:
        """The leases of a reader, in the order in which it reads them."""
        return self.open.get(reader, {})

    def readers_of(self, replica: int) -> set[Reader]:
        """The readers of a replica that were leased shards, whether it reads yet or not."""
        return {reader for reader in self.open if reader.group.replica == replica}

    # ------------------------------------------------------------------------------- leasing

    def choose(self, asking: Iterable[tuple[Reader, int]]) -> list[tuple[Reader, list[int]]]:
        """Choose shards for readers that ask for so many; the ledger stays as it is.

        What was returned goes first. Near the end nobody gets more than its share of the half of
        what is left, so that readers end together.
        """
        readers, left = max(1, sum(self.groups.values())), self.left
        pool = self._pool()
        chosen = []
        for reader, count in asking:
            share = min(count, max(1, left // (2 * readers)))
            taken = [ordinal for _, ordinal in zip(range(share), pool, strict=False)]
            left -= len(taken)
            chosen.append((reader, taken))
        return chosen

    def _pool(self) -> Iterator[int]:
        yield from sorted(self.returned)
        ordinal, end = self.fresh, self.end
        while end is None or ordinal < end:
            yield ordinal
            ordinal += 1

    def lease(self, reader: Reader, request: int, ordinals: Iterable[int]) -> None:
        """Lease shards to a reader, as `choose` has chosen them."""
        leases = self.open.setdefault(reader, {})
        for ordinal in ordinals:
            if ordinal in self.returned:
                leases[ordinal] = self.returned.pop(ordinal)
            elif ordinal >= self.fresh:
                self._skip_to(ordinal)
                self.fresh, leases[ordinal] = ordinal + 1, 0
        self.asked[reader] = max(request, self.asked.get(reader, 0))

    def _skip_to(self, ordinal: int) -> None:
        """Have all fresh shards before an ordinal wait for a reader."""
        self.returned.update(dict.fromkeys(range(self.fresh, ordinal), 0))
        self.fresh = max(self.fresh, ordinal)

    # ------------------------------------------------------------------------------ progress

    def commit(
        self, reader: Reader, step: int, positions: Mapping[int, int], done: Collection[int]
    ) -> None:
        """Take a reader's progress: it is part of the state after `step`.

        A shard that is not the reader's any more was returned, and may be another's: the report
        changes nothing. Changes are kept in the order of reading.
        """
        leases = self.open.get(reader, {})
        for ordinal in done:
            if self._note(reader, step, ordinal):
                del leases[ordinal]
        for ordinal, position in positions.items():
            if self._note(reader, step, ordinal):
                leases[ordinal] = max(leases[ordinal], position)
        self.newest = max(self.newest, step)
        if len(self.changes) > 2 * KEPT_CHANGES:
            self.forgotten = max(change.step for change in self.changes[:-KEPT_CHANGES])
            del self.changes[:-KEPT_CHANGES]

    def _note(self, reader: Reader, step: int, ordinal: int) -> bool:
        """Whether a shard is the reader's; if so, keep what stood there before a change."""
        position = self.held(reader).get(ordinal)
        if position is None:
            self.late += 1
            return False
        if reader.group.replica:
            self.changes.append(
                CommittedChange(step, ordinal, position, reader.group.replica, reader.rank)
            )
        return True

    def follow(self, world: wire.WorldDecided, there: Collection[int] = frozenset()) -> None:
        """Return the leases of readers whose processes do not go on in a world.

        Replicas that it leaves out and that are still to end keep theirs. Where it has a node of
        theirs, other processes start there: theirs have ended.

        there: Node ranks that are not gone.
        """
        groups, stay = groups_of(world), {one.node_rank for one in world.members}
        told = {Group(one.replica, one.round): frozenset(one.node_ranks) for one in world.leaving}
        lost = {Group(one.replica, one.round) for one in world.lost}
        leaving = {
            group: ranks.intersection(there)
            for group, ranks in (self.leaving | told).items()
            if group not in groups and not ranks & stay and not ranks.isdisjoint(there)
        }
        self.keep_only(groups, leaving, (self.lost | lost) - groups - leaving.keys())

    def keep_only(
        self,
        groups: Collection[Group],
        leaving: Mapping[Group, frozenset[int]] | None = None,
        lost: Collection[Group] = (),
    ) -> None:
        """Return the leases of all other groups, each from its committed position.

        leaving: Groups that still read, with their node ranks.
        lost: Groups of which others tell how far they had read.
        """
        read = {one.group for one, leases in self.open.items() if leases}
        self.leaving = {group: ranks for group, ranks in (leaving or {}).items() if group in read}
        # One that has nothing left may have done the last of it alone.
        known = {one.group for one in self.open} if self.placed else set()
        self.lost = known.intersection({*lost, *(leaving or {})}) - self.leaving.keys()
        kept = {*groups, *self.leaving, *self.lost}
        for reader in [one for one in self.open if one.group not in kept]:
            self.returned |= self.open.pop(reader)
        for reader in [one for one in self.asked if one.group not in groups]:
            del self.asked[reader]
        for group in self.groups.keys() - set(groups):
            del self.groups[group]

    def node_gone(self, rank: int) -> None:
        """Return what a group that was told to end has left, once all of its nodes are gone.

        It may have ended behind a reduction, before it had told of it: others tell.
        """
        for group in [one for one, ranks in self.leaving.items() if rank in ranks]:
            self.leaving[group] -= {rank}
            if self.leaving[group]:
                continue
            if self.placed:
                del self.leaving[group]
                self.lost.add(group)
            else:
                self.end_reading(group)

    def end_reading(self, group: Group, told: Mapping[int, wire.LostReader] | None = None) -> None:
        """Return what a group has left that was told to end, or is lost.

        told: What others know of its readers, by rank; None: what they had committed counts.
        """
        known = told or {}
        oldest = min((one.step for one in known.values()), default=0)
        late = [one for one in self.changes if one.replica == group.replica and one.step > oldest]
        for rank, lost in known.items():
            of_rank = [one for one in late if one.rank == rank and one.step > lost.step]
            self._correct(Reader(group, rank), lost, of_rank)
        for reader in [one for one in self.open if one.group == group]:
            self.returned |= self.open.pop(reader)
        self.leaving.pop(group, None)
        self.lost.discard(group)

    def _correct(
        self, reader: Reader, lost: wire.LostReader, late: Sequence[CommittedChange]
    ) -> None:
        """Have a lost reader have read what the sums of others have, not more and not less.

        It may have died behind a reduction, before it told so. One that was torn for all others
        may have been whole for it, which it has told: that is undone.

        late: Its changes with later steps.
        """
        leases = self.held(reader)
        undone = {one.ordinal: one.position for one in reversed(late)}
        done = {one.ordinal: 0 for one in late if one.ordinal not in leases}
        leases = self.open[reader] = {**done, **leases, **undone}
        if gone := set(late):
            self.changes = [one for one in self.changes if one not in gone]
        order = list(leases)
        if lost.newest is None or lost.newest.ordinal not in order:
            return  # it had read nothing, or has told of all that it had read
        at, position = order.index(lost.newest.ordinal), lost.newest.position
        read = {} if lost.done else {lost.newest.ordinal: position}
        self.commit(reader, lost.step, read, order[: at + lost.done])

    # ------------------------------------------------------------------------------- restore

    def join(self, group: Group, readers: int) -> None:
        """Have a group begin beside others, with the state that it is given of them."""
        self.groups[group] = readers
        self.leaving.pop(group, None)  # a successor has taken an earlier world up
        self.lost.discard(group)

    def begin(self, group: Group, claims: Mapping[int, wire.ReaderClaim | None]) -> str:
        """Have the first group begin from what its readers' checkpoints say, by rank.

        None: a reader goes on with what is committed.

        Returns:
            Reason for which the ledger does not go back to their step; empty: it does.
        """
        self.groups[group] = len(claims)
        given = {rank: claim for rank, claim in sorted(claims.items()) if claim is not None}
        if not given:
            return ""
        self.keep_only({group})
        step = max(claim.step for claim in given.values())
        lost = self._go_back(step) if group.replica else self._forget_all()
        self._pass(step, max(claim.floor for claim in given.values()))
        for rank, claim in given.items():
            for one in claim.done:
                span = range(one.first, one.first + one.count * one.stride, one.stride)
                for ordinal in self._within(span):
                    self._claim(Reader(group, rank), step, ordinal)
        for rank, claim in given.items():
            self._hold(Reader(group, rank), step, claim.held)
        self.newest = step
        return lost

    def _forget_all(self) -> str:
        """Go back to the beginning: the claims of a whole world say all that there is to say."""
        self.fresh, self.returned, self.open, self.asked, self.changes = 0, {}, {}, {}, []
        self.forgotten = 0
        return ""

    def _go_back(self, step: int) -> str:
        """Undo the progress of all replicas after a step; their leases are returned already."""
        if step < self.forgotten:
            lost = f"changes before step {self.forgotten} are not kept any more: {_READ_AGAIN}"
            return self._forget_all() or lost
        for change in reversed(self.changes):  # unlike readers report a step at unlike times
            if change.step > step:
                self.returned[change.ordinal] = change.position
        self.changes = [change for change in self.changes if change.step <= step]
        return ""

    def _pass(self, step: int, floor: int) -> None:
        """Have all shards before an ordinal be done, where none of them was leased before."""
        if floor > self.fresh:
            self.forgotten = max(self.forgotten, step)  # another job knew when they were done
        self.fresh = max(self.fresh, floor if self.end is None else min(floor, self.end))

    def _claim(self, reader: Reader, step: int, ordinal: int) -> bool:
        """Take a shard that a claim has out of those that wait; the way back has it as a change."""
        self._skip_to(ordinal + 1)
        position = self.returned.pop(ordinal, None)
        if position is not None and reader.group.replica:
            self.changes.append(
                CommittedChange(step, ordinal, position, reader.group.replica, reader.rank)
            )
        return position is not None

    def _within(self, ordinals: Iterable[int]) -> Iterator[int]:
        """Those of this run's epochs: the checkpoint may be of one that had more."""
        return (one for one in ordinals if self.end is None or one < self.end)

    def _hold(self, reader: Reader, step: int, held: Iterable[wire.ShardPosition]) -> None:
        """Lease shards to the reader that had them when it saved, from where it was."""
        leases = self.open.setdefault(reader, {})
        places = {one.ordinal: one.position for one in held}
        for ordinal in self._within(places):
            if self._claim(reader, step, ordinal):
                leases[ordinal] = places[ordinal]

    # --------------------------------------------------------------------------------- copies

    def copy(self) -> Ledger:
        """A ledger that later changes of this one do not change."""
        return dataclasses.replace(
            self,
            returned=dict(self.returned),
            open={reader: dict(leases) for reader, leases in self.open.items()},
            asked=dict(self.asked),
            groups=dict(self.groups),
            leaving=dict(self.leaving),
            lost=set(self.lost),
            changes=list(self.changes),
        )


def progress_seconds(readers: int) -> float:
    """Return the least time between two reports of one of so many readers of replicas, s.

    A replica that is lost with its agent has read anew what it had not reported, though all others
    have its gradients: so each commit is reported, as long as all readers together make no more
    than some reports a second.
    """
    return min(LONGEST_PROGRESS_SECONDS, readers / MOST_REPORTS_A_SECOND)


def groups_of(world: wire.WorldDecided) -> set[Group]:
    """The groups of readers that a world has."""
    return {Group(one.number, one.round) for one in world.replicas} or {Group(0, world.round)}


def left_out(
    last: wire.WorldDecided, replicas: Collection[int], agents: Mapping[int, str]
) -> tuple[list[wire.LeavingReaders], list[wire.ReaderGroup]]:
    """The replicas that the next world leaves out: those that are still to end, and the lost ones.

    Where none goes on, nobody is left that could tell what lost ones had read.

    Args:
        last: The world before it.
        replicas: Numbers of those that go on.
        agents: Agent of each node that is not gone.
    """
    leaving, lost, members = [], [], iter(last.members)
    for one in last.replicas:
        own = list(itertools.islice(members, one.nodes))
        there = all(agents.get(member.node_rank) == member.agent_id for member in own)
        ranks = tuple(member.node_rank for member in own)
        name = {"replica": one.number, "round": one.round}
        if there and one.number not in replicas:
            leaving.append(wire.LeavingReaders(**name, node_ranks=ranks))
        elif one.number not in replicas:
            lost.append(wire.ReaderGroup(**name))
    goes_on = any(one.number in replicas for one in last.replicas)
    return leaving, lost if goes_on else []
