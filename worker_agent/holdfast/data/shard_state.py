"""Progress of a reader in its shards: for a checkpoint, and dealt out to a world of another size.

Belongs here: values alone. Does not belong here: reading, and asking for shards (`shards`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.replicas.reader_place import LostPlace, ReaderPlace
from holdfast_wire.messages import (
    LostReader,
    ReaderClaim,
    ShardPosition,
    ShardRange,
    ShardsLeased,
)


class DoneShards:
    """Ordinals that are done, as few ranges: those of a reader come in steps of some kind."""

    def __init__(self, ranges: Iterable[ShardRange] = ()) -> None:
        """Begin with ranges that were done before."""
        self._ranges = list(ranges)

    def __contains__(self, ordinal: object) -> bool:
        return any(ordinal in _span(one) for one in self._ranges)

    def __iter__(self) -> Iterator[int]:
        for one in self._ranges:
            yield from _span(one)

    @property
    def ranges(self) -> tuple[ShardRange, ...]:
        """All of them."""
        return tuple(self._ranges)

    def add(self, ordinal: int) -> None:
        """Add one that is not there."""
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last.count == 1 and ordinal > last.first:
            last = dataclasses.replace(last, stride=ordinal - last.first)
        if last is not None and ordinal == last.first + last.count * last.stride:
            self._ranges[-1] = dataclasses.replace(last, count=last.count + 1)
        else:
            self._ranges.append(ShardRange(first=ordinal, count=1, stride=1))

    def drop_before(self, floor: int) -> None:
        """Forget those before an ordinal."""
        kept = (_after(one, floor) for one in self._ranges)
        self._ranges = [one for one in kept if one is not None]


def _span(one: ShardRange) -> range:
    return range(one.first, one.first + one.count * one.stride, one.stride)


def _after(one: ShardRange, floor: int) -> ShardRange | None:
    left = [ordinal for ordinal in (_span(one)[-1:]) if ordinal >= floor]
    if not left:
        return None
    gone = max(0, -(-(floor - one.first) // one.stride))
    return dataclasses.replace(one, first=one.first + gone * one.stride, count=one.count - gone)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReaderState:
    """A reader's state in a checkpoint."""

    name: str
    digest: str
    """Names the list of shards and their order."""
    step: int = 0
    """Newest step that it was told to be committed."""
    floor: int = 0
    """All ordinals before it were done, by any reader."""
    done: tuple[ShardRange, ...] = ()
    held: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """Ordinals that it had begun or leased, with the next record of each."""
    number: int = 0
    """The reader's, from 0."""
    world: int = 1
    """Number of readers."""
    own: Mapping[int, int] | None = None
    """Without an agent: what it reads before `fresh`, as in `held`; None: there was one."""
    fresh: int = 0
    """Without an agent: the ordinal that it goes on with, in steps of `world`."""

    def claim(self) -> ReaderClaim:
        """What the master is told."""
        return ReaderClaim(
            step=self.step, floor=self.floor, done=self.done, held=positions(self.held)
        )

    def as_plain(self) -> dict[str, Any]:
        """The state as a checkpoint has it."""
        return {
            "name": self.name,
            "digest": self.digest,
            "step": self.step,
            "floor": self.floor,
            "done": [[one.first, one.count, one.stride] for one in self.done],
            "held": [[ordinal, position] for ordinal, position in self.held.items()],
            "number": self.number,
            "world": self.world,
            "own": None if self.own is None else [[one, at] for one, at in self.own.items()],
            "fresh": self.fresh,
        }


def of_plain(state: Mapping[str, Any]) -> ReaderState:
    """The state that `ReaderState.as_plain` made this from."""
    given = dict(state)
    done = (ShardRange(first=f, count=c, stride=s) for f, c, s in given.pop("done"))
    held, own = dict(given.pop("held")), given.pop("own")
    return ReaderState(**given, done=tuple(done), held=held, own=None if own is None else dict(own))


class ReaderProgress:
    """What one reader holds, has read and has committed."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.held = dict[int, int]()
        """Leased shards that are not done, with the next record of each; the first is read."""
        self.done = DoneShards()
        self.step = self.floor = 0
        self.last_done: int | None = None
        """Newest shard that is done, as this process has read it."""
        self._news = list[int]()
        """Shards that are done and not committed."""
        self._positions = dict[int, int]()
        """Of shards that are not done, as of the newest commit."""
        self._unreported = list[int]()
        """Shards that are done by the newest commit, and not reported."""
        self._next_floor = (0, 0)
        """A floor, and the step that it holds from."""

    def begin_from(self, state: ReaderState) -> None:
        """Go on from a checkpoint; its leases are to be leased again."""
        self.step, self.floor, self.done = state.step, state.floor, DoneShards(state.done)

    def take(self, leased: ShardsLeased) -> None:
        """Take what was leased: an answer has all that the reader holds, also what it has done."""
        self._next_floor = max(self._next_floor, (leased.floor, leased.floor_step))
        for one in leased.held:
            if one.ordinal not in self.held and one.ordinal not in self.done:
                self.held[one.ordinal] = one.position

    def finish(self, ordinal: int) -> None:
        """Have a shard be done."""
        del self.held[ordinal]
        self.done.add(ordinal)
        self.last_done = ordinal
        self._news.append(ordinal)

    def place(self) -> ReaderPlace | None:
        """Return the newest shard that is begun, and its next record; None: nothing is read."""
        newest, position = next(iter(self.held.items()), (0, 0))
        if position:
            return ReaderPlace(newest, position)
        return None if self.last_done is None else ReaderPlace(self.last_done, -1)

    @property
    def has_news(self) -> bool:
        """Shards are done that no commit has."""
        return bool(self._news)

    def commit(self, step: int) -> None:
        """Take all that was read so far as part of the state after a step."""
        self.step = max(self.step, step)
        self._positions = {one: at for one, at in self.held.items() if at}
        self._unreported += self._news
        self._news = []
        floor, since = self._next_floor
        if since and since <= self.step and floor > self.floor:
            self.floor = floor
            self.done.drop_before(floor)

    def report(self) -> tuple[tuple[ShardPosition, ...], tuple[int, ...]]:
        """Committed positions, and the shards that are done since the report before."""
        done, self._unreported = tuple(self._unreported), []
        return positions(self._positions), done


def positions(held: Mapping[int, int]) -> tuple[ShardPosition, ...]:
    """Ordinals with the next record of each, as a message has them."""
    return tuple(ShardPosition(ordinal=one, position=at) for one, at in held.items())


def lost_reader(lost: LostPlace) -> LostReader:
    """How far a reader of a lost replica had read, as a message has it."""
    replica, step, place, epoch = lost
    if place is None:
        return LostReader(replica=replica, step=step, epoch=epoch)
    newest = ShardPosition(ordinal=place.ordinal, position=max(0, place.position))
    done = place.position < 0
    return LostReader(replica=replica, step=step, newest=newest, done=done, epoch=epoch)


def reshard(states: Sequence[ReaderState], rank: int, world: int) -> ReaderState:
    """Deal the states of a world out to one reader of another.

    With an agent the new readers together claim what the old ones did. Without one each knows from
    all states what is left, and takes its share of it.
    """
    share = [one for one in states if one.number % world == rank]
    floor = max(one.floor for one in states)
    done = {ordinal for one in states for ordinal in DoneShards(one.done)}
    # A rank that does not read may have a state of before, beside the reader that went on from it.
    farthest = dict[int, tuple[int, int]]()
    for one in states:
        for ordinal in one.held.keys() - done:
            at = (one.held[ordinal], one.number)
            farthest[ordinal] = max(farthest.get(ordinal, at), at)
    held = {ordinal: at for ordinal, (at, _) in farthest.items()}
    frontier = max([floor, *(ordinal + 1 for ordinal in (*done, *held))])
    left = [one for one in range(floor, frontier) if one not in done]
    own = {ordinal: held.get(ordinal, 0) for ordinal in left[rank::world]}
    return dataclasses.replace(
        states[0],
        step=max(one.step for one in states),
        floor=floor,
        done=tuple(each for one in share for each in one.done),
        held={one: at for one, (at, number) in farthest.items() if number % world == rank},
        number=rank,
        world=world,
        own=own,
        fresh=frontier + (rank - frontier) % world,
    )
