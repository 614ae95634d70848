"""Shards of a dataset, each record once: an iterable that leases them, for a training loop.

```python
shards = ShardReader(sorted(glob("/data/*.tar")), read=records_of, name="train", epochs=3, seed=0)
flash = holdfast.Checkpointer("/shared/run", model=model, optimizer=optimizer,
                              per_rank={"shards": shards})
step = flash.load()
while batch := [record.value for record in itertools.islice(shards, 32)]:
    train(batch)
    step += 1
    shards.commit(step)
    flash.step(step)
```

Belongs here: the calls of a script. Does not belong here: who gets which shard (the master's
ledger), how it is asked (`shard_link`), what a checkpoint has (`shard_state`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import os
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

from holdfast.data import shard_state
from holdfast.data.counting import LostReplica, Origin
from holdfast.data.record import ShardRecords, generation
from holdfast.data.shard_link import AgentSource, ShardError, ShardSource, StaticSource
from holdfast.data.shard_state import ReaderProgress, ReaderState
from holdfast.environment import Environment
from holdfast.replicas.reader_place import LostPlace, ReaderPlace
from holdfast_wire.messages import ReaderOpened, ReaderReport, ShardsLeased

__all__ = ["ShardError", "ShardReader", "ShardRecord"]

T = TypeVar("T")

log: Final = logging.getLogger("holdfast")
AHEAD_SECONDS: Final = 60.0
"""A reader asks for as many shards as it reads in this time: a master without a successor for so
long stops nobody, and 10,000 readers ask 170 times a second."""
FIRST_AHEAD: Final = 2
"""Shards that are asked for while nobody knows how long one takes."""
MOST_AHEAD: Final = 64
"""Shards that are asked for at once."""
AGAIN_SECONDS: Final = 20.0
"""A reader that found nothing left asks again after this time, if its loop goes on: what a lost
replica held may have come back."""


class ShardRecord(NamedTuple, Generic[T]):
    """A record, and its place."""

    epoch: int
    """From 0."""
    shard: str
    """Name of its shard."""
    position: int
    """Records of the shard before it."""
    value: T
    """The record itself."""


class PlaceCarrier(Protocol):
    """What sums the gradients of this rank's records with those of others: `Replicated`."""

    def carry_place(self, reader: ShardReader[Any]) -> None:
        """Have the place of a reader travel with them."""


class ShardReader(Generic[T]):
    """Records of shards that no other reader reads; iterate over it once.

    Under an agent the job's master leases shards, and a world of any size goes on where its
    checkpoint was. Without one the ranks share the shards by rank. A rank's iteration ends when
    nothing is left, some steps before or after the others': a loop with collectives agrees on its
    last step itself. Use it in the process of the rank, not in a worker of a `DataLoader`.
    """

    _source: ShardSource | None

    def __init__(  # noqa: PLR0913 - each is a choice of the user, given by name
        self,
        shards: Sequence[str],
        read: Callable[[str, int], Iterable[T]],
        *,
        name: str = "data",
        epochs: int = 1,
        seed: int | None = None,
        seekable: bool = True,
        checkpointed: bool = True,
        place: tuple[int, int] | None = None,
        record: str | Path = "",
        replicated: PlaceCarrier | None = None,
    ) -> None:
        """Take the list; nothing is leased yet.

        Args:
            shards: Names, for `read`: files, URLs, ranges of a table. Equal on all ranks.
            read: Returns the records of a shard from a record on, from 0.
            name: Tells datasets of one script apart.
            epochs: How often each record is read; 0: without an end.
            seed: Shuffles the shards of each epoch, alike on all ranks; None: as they are given.
            seekable: False: `read` ignores where it is to begin. A shard that was left half read is
                read anew then, with a warning.
            checkpointed: False: no checkpoint has this object. After a restart the readers go on
                with what is left, so what was read after the checkpoint is not read again, and what
                was not reported may be.
            place: Number of this reader among so many, where not all ranks read, as under tensor
                parallelism; None: all do, and it is the rank among the world's. In a world of
                another size a checkpoint deals its states out by it.
            record: Folder, shared by all ranks, that `commit` writes the places of records into;
                `holdfast samples` counts them. "": none.
            replicated: The synchronous replicas (`Replicated`) whose gradients are of these
                records: where one of them is lost, the others tell which of its records count.
                Without it a replica that is lost with its agent may have some read again.

        Raises:
            ReplicasError: `replicated` has begun its first step.
            ValueError: the list is empty, `epochs` is negative, or `place` is none.
        """
        if not shards or epochs < 0:
            raise ValueError(f"{len(shards)} shards, epochs={epochs}: expected at least 1 and 0")
        environment = Environment.read()
        self._rank, self._world = _place_of(place, environment)
        self._shards, self._read = tuple(shards), read
        self._name, self._epochs, self._seed = name, epochs, seed
        self._seekable, self._checkpointed = seekable, checkpointed
        self._agent, self._round = environment.data, environment.round
        self._replica = environment.replica
        self._digest = _digest(self._shards, seed)
        self._process, self._source = os.getpid(), None
        self._is_placed = replicated is not None
        self._commits, self._is_committed, self._again_at = False, False, 0.0
        """The script says which steps its records are part of; when it may ask after the end."""
        self._order = (-1, tuple[int, ...]())
        """An epoch, and its shards in order."""
        self._records: Iterator[T] | None = None
        """Of the shard that is read."""
        self._progress = ReaderProgress()
        self._request, self._awaited, self._ended = 0, False, False
        self._shard_at, self._shard_seconds = time.monotonic(), 0.0
        """Usual time for a shard, s; 0: not known yet."""
        self._state: ReaderState | None = None
        """Of a checkpoint."""
        self._record = ShardRecords(record) if record else None
        self.repeated = 0
        """Records that were read again because `read` cannot begin within a shard."""
        if replicated is not None:
            replicated.carry_place(self)

    # --- reading ----------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        """Return itself: what was read is not read again."""
        return self

    def __next__(self) -> ShardRecord[T]:
        """Return the next record.

        Raises:
            StopIteration: nothing is left for this rank, unless a replica is lost later.
            ShardError: no shard can be leased.
        """
        while True:
            if self._records is None and not self._begin():
                self._commit_ends()
                raise StopIteration
            held = self._progress.held
            ordinal, position = next(iter(held.items()))
            try:
                value = next(self._records)  # type: ignore[arg-type]
            except StopIteration:
                self._end(ordinal)
                continue
            held[ordinal] = position + 1
            self._is_committed = False
            epoch, shard = self._named(ordinal)
            if self._record is not None:
                self._record.read(epoch, shard, position)
            return ShardRecord(epoch, shard, position, value)

    def _begin(self) -> bool:
        """Begin the next leased shard; False: nothing is left."""
        held = self._progress.held
        if not held and not self._take():
            return False
        if len(held) == 1 and not self._awaited and not self._ended:
            self._ask()
        ordinal, position = next(iter(held.items()))
        _, shard = self._named(ordinal)
        if position and not self._seekable:
            self._say_repeated(shard, position)
            held[ordinal] = position = 0
        self._shard_at = time.monotonic()
        self._records = iter(self._read(shard, position))
        return True

    def _commit_ends(self) -> None:
        """Commit shards whose last record was the last of a step: their end shows behind it."""
        recorded = self._record is not None and self._record.has_news
        if self._commits and self._is_committed and (recorded or self._progress.has_news):
            self.commit(self._progress.step)

    def _end(self, ordinal: int) -> None:
        self._records = None
        if self._record is not None:
            self._record.end(*self._named(ordinal))
        self._progress.finish(ordinal)
        spent, usual = time.monotonic() - self._shard_at, self._shard_seconds
        self._shard_seconds = spent if not usual else usual + 0.3 * (spent - usual)

    def _say_repeated(self, shard: str, position: int) -> None:
        if not self.repeated:
            text = (
                f"shard {shard!r} is read from its beginning again, and {position} records twice: "
                "its reader cannot seek"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        self.repeated += position

    def _named(self, ordinal: int) -> tuple[int, str]:
        """The epoch of an ordinal, and the name of its shard."""
        epoch, index = divmod(ordinal, len(self._shards))
        if self._seed is None:
            return epoch, self._shards[index]
        if self._order[0] != epoch:
            order = list(range(len(self._shards)))
            random.Random(f"{self._seed}-{epoch}").shuffle(order)  # noqa: S311 - nothing secret
            self._order = (epoch, tuple(order))
        return epoch, self._shards[self._order[1][index]]

    # --- leasing ----------------------------------------------------------------------------------

    def _take(self) -> bool:
        """Wait for shards; False: nothing is left, for now."""
        if time.monotonic() < self._again_at:
            return False
        ahead = self._awaited
        if not self._awaited:
            self._ask()
        self._hear(self._open().answer())
        held = self._progress.held
        if self._ended and ahead and not held:
            # It was said while this shard was read: others may have lost theirs since.
            self._ask()
            self._hear(self._open().answer())
        self._again_at = 0.0 if held else time.monotonic() + AGAIN_SECONDS
        return bool(held)

    def _ask(self) -> None:
        wanted = FIRST_AHEAD
        if self._shard_seconds:
            wanted = min(MOST_AHEAD, math.ceil(AHEAD_SECONDS / self._shard_seconds))
        begun = self._source is not None
        source = self._open()
        self._request += 1
        self._awaited = True
        if begun or not self._agent:
            source.report(self._report(wanted))  # else the first words have asked

    def _hear(self, leased: ShardsLeased) -> None:
        self._awaited, self._ended = False, leased.ended
        self._progress.take(leased)

    def _open(self) -> ShardSource:
        if self._process != os.getpid():
            raise ShardError(
                f"dataset {self._name}: process {os.getpid()} is a forked child of the rank "
                f"{self._process}, which leases its shards; read them there"
            )
        if self._source is None:
            end = self._epochs * len(self._shards) or None
            if not self._agent:
                self._source = StaticSource(self._rank, self._world, end, self._state)
                return self._source
            self._source = AgentSource(self._agent, self._round)
            self._source.open(self._opened())
        return self._source

    def _opened(self) -> ReaderOpened:
        state = self._state or ReaderState(name=self._name, digest=self._digest)
        return ReaderOpened(
            dataset=self._name,
            shards=len(self._shards),
            epochs=self._epochs,
            digest=self._digest,
            rank=self._rank,
            readers=self._world,
            claim=state.claim() if self._checkpointed else None,
            wanted=FIRST_AHEAD,
            placed=self._is_placed,
        )

    # --- progress ---------------------------------------------------------------------------------

    def commit(self, step: int) -> None:
        """Say that all records so far are part of the state after `step`; after each step.

        Costs some 20 µs in a replica that nobody restarts, which tells its agent: what is lost with
        it is read again from there. In a plain world all ranks go back to a checkpoint.

        Args:
            step: Completed optimizer steps since training began, as in `Job.step`.
        """
        self._commits = self._is_committed = True
        if self._record is not None:
            self._record.commit(step, self._origin())
        self._progress.commit(step)
        if self._replica and self._agent and self._source:
            self._source.report(self._report(0))

    @property
    def name(self) -> str:
        """Tells datasets of one script apart."""
        return self._name

    def reducing(self, step: int) -> ReaderPlace | None:
        """Return where this reader is: its newest shard and the next record; None: nowhere yet.

        Args:
            step: Completed steps, once the sum is reduced that has all it has read so far.
        """
        if self._record is not None:
            self._record.reducing(step, self._origin())
        return self._progress.place()

    def tell_lost(self, lost: Sequence[LostPlace], torn: int) -> None:
        """Tell the master where readers of this rank were in replicas that are lost.

        Args:
            lost: By the newest sums that have their gradients.
            torn: Step that this replica is in.
        """
        if self._record is not None:
            for one in lost:
                self._record.lost(LostReplica(one.replica, one.step, torn), self._origin())
        if self._agent and self._source:
            told = tuple(map(shard_state.lost_reader, lost))
            try:
                self._source.report(dataclasses.replace(self._report(0), lost=told))
            except ShardError as error:  # others tell, too; this replica trains on
                log.warning("dataset %s: not told of lost replicas: %s", self._name, error)

    def _origin(self) -> Origin:
        """Where nobody goes back to a checkpoint, nothing is done anew."""
        number = self._replica or self._rank
        step = self._state.step if self._state is not None else 0
        goes_back = self._checkpointed and not self._replica
        return Origin(number, generation() if goes_back else None, step)

    def _report(self, wanted: int) -> ReaderReport:
        progress = self._progress
        # A replica may be lost beside others before its first commit: what it read then is theirs.
        commits = self._commits or self._replica
        waits = self._checkpointed and commits and self._agent
        # What is read for a step that is torn is not of the step before: its place says so.
        if not (waits or (self._is_placed and self._replica)):
            progress.commit(progress.step)
        places, done = progress.report()
        return ReaderReport(
            dataset=self._name,
            rank=self._rank,
            step=progress.step,
            positions=places,
            done=done,
            request=self._request,
            wanted=wanted,
        )

    # --- the checkpoint ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return this reader's state: all records that it has returned count as read."""
        if self._request == 0 and self._state is not None:
            return self._state.as_plain()
        progress, source = self._progress, self._source if self._agent else self._open()
        static = source if isinstance(source, StaticSource) else None
        held = {**progress.held, **(static.own if static is not None else {})}
        state = ReaderState(
            name=self._name,
            digest=self._digest,
            step=progress.step,
            floor=progress.floor,
            done=progress.done.ranges,
            held=held,
            number=self._rank,
            world=self._world,
            own=held if static is not None else None,
            fresh=static.fresh if static is not None else 0,
        )
        return state.as_plain()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was; before the first record.

        Raises:
            ShardError: the state is of another list of shards, or of another number of readers, or
                reading has begun, or it was saved under an agent by several ranks, and there is
                none now.
        """
        given = shard_state.of_plain(state)
        if self._request:
            raise ShardError(f"dataset {self._name}: a state is loaded after reading has begun")
        if given.digest != self._digest:
            raise ShardError(
                f"dataset {self._name}: the checkpoint is of another list of shards, or another "
                "seed; give the reader another name to begin it anew"
            )
        if given.world != self._world:
            raise ShardError(
                f"dataset {self._name}: the state is of one of {given.world} readers, and this is "
                f"one of {self._world}: give `reshard` the states of all, and load what it returns"
            )
        if not self._agent and given.own is None:
            if given.world > 1:
                raise ShardError(
                    f"dataset {self._name}: a master leased the shards of this checkpoint, so one "
                    "rank does not know what others had done; run it under holdfast-run"
                )
            given = shard_state.reshard([given], 0, 1)
        self._state, self._source = given, None
        self._progress.begin_from(given)

    def fits_state(self, state: Mapping[str, Any]) -> bool:
        """Whether a state is of this reader, by number and count; else the checkpoint reshards."""
        given = shard_state.of_plain(state)
        return (given.number, given.world) == (self._rank, self._world)

    def reshard(self, states: Sequence[Mapping[str, Any]], *_: int) -> dict[str, Any]:
        """Deal states of other readers out, by this one's place; the checkpoint calls it.

        Args:
            states: Of all ranks that had a reader.
        """
        given = [shard_state.of_plain(one) for one in states]
        return shard_state.reshard(given, self._rank, self._world).as_plain()

    def close(self) -> None:
        """End the connection to the agent."""
        if self._source is not None:
            self._source.close()


def _place_of(place: tuple[int, int] | None, environment: Environment) -> tuple[int, int]:
    """A reader's number, and how many there are; raises ValueError if it is none of them."""
    number, readers = place or (environment.rank, environment.world_size)
    if not 0 <= number < readers:
        raise ValueError(f"place={place}: expected a number below that of all readers")
    return number, readers


def _digest(shards: Sequence[str], seed: int | None) -> str:
    found = hashlib.sha256(repr(seed).encode())
    for name in shards:
        found.update(b"\0" + name.encode(errors="surrogateescape"))
    return found.hexdigest()[:16]
