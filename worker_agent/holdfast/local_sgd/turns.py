"""A-EDiT on real ranks: the replica whose time is up first has all enter a round together.

Belongs here: the clock, the store of the sync group, and the ranks of a replica that go together.
Does not belong here: the decisions (`policies.schedule`), the round itself (`pipelined_round`).

The first rank of a replica looks at the store and at the clock at the end of each step; its ranks
learn what it saw by one scalar all-reduce, so all of them enter at one step. Replicas that have
entered exchange their steps, and all decide alike.

Where members come and go each epoch has a store of its own. A rank that sees a newer roster gives
up the old one by a `SyncError`, at the end of a step, and the others do too. Who had entered a
round of which nobody has begun a unit has not entered: its steps count in the next (`move`).
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies.schedule import (
    Entry,
    Progress,
    Turn,
    after,
    enter,
    is_triggering,
    stepped,
)
from holdfast.local_sgd.sync.group import Group, SyncError
from holdfast.local_sgd.sync.unit_sync import all_or_none

if TYPE_CHECKING:
    import torch.distributed as dist

_EXHAUSTED: Final = "exhausted"
_POLL_SECONDS: Final = 0.02
_LOOK_SECONDS: Final = 1.0
"""Longest time for which a rank without data looks before its replica compares: far less than the
deadline of a collective."""
_numbers: Final = itertools.count()
"""One prefix in the store for each training of a process."""


def rounds_store(kind: str, store: dist.Store | None, number: int | None = None) -> dist.Store:
    """Return where replicas meet in rounds by time.

    Args:
        kind: Of the rounds.
        store: Of an epoch; None: that of the default process group, for all trainings in it.
        number: Of the training in its process; None: the store has one only.
    """
    import torch.distributed as dist

    if store is None:
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - no public way
    return dist.PrefixStore(f"holdfast/{kind}/{'epoch' if number is None else number}", store)


def told_by_first(
    own: Group, look: Callable[[], Sequence[float]], width: int, has_changed: Callable[[], bool]
) -> list[float]:
    """Return on all ranks of a replica what the first sees in the store; one scalar all-reduce.

    Args:
        own: The ranks of the replica.
        look: Asked of the first; returns numbers, at least 0.
        width: How many.
        has_changed: Tells of a newer roster.

    Raises:
        SyncError: on all of them: there is a newer roster, or the store is gone with its host.
    """
    import torch.distributed as dist

    seen, why = [0.0] * width, ""
    if own.rank == 0:
        try:
            why = "there is a newer roster" if has_changed() else ""
            seen = seen if why else list(look())
        except dist.DistError as error:
            why = f"the store of the replicas is gone ({error})"
    *told, failed = own.max_scalars([*seen, float(bool(why))])
    if failed:
        raise SyncError(why or "the first rank of this replica has found other members, or none")
    return told


class Turns:
    """One replica's turns; every rank of it has one, and calls it at the same steps."""

    def __init__(
        self,
        config: LocalSGDConfig,
        replicas: Group,
        own: Group,
        *,
        store: dist.Store | None = None,
        clock: Callable[[], float] = time.monotonic,
        has_changed: Callable[[], bool] | None = None,
    ) -> None:
        """Start the clock.

        Args:
            config: τ, and the least number of steps.
            replicas: The ranks that hold this rank's shards.
            own: The ranks of this replica.
            store: A store of all replicas; None: that of the default process group.
            clock: Seconds that never go back.
            has_changed: Tells of a newer roster, where members come and go; None: they are fixed.
        """
        self._config, self._own, self._clock = config, own, clock
        self._has_changed = has_changed or (lambda: False)
        self._voters = own if has_changed is not None else None
        self._store = rounds_store("local_sgd", store, next(_numbers))
        self.replicas = replicas
        """The ranks that hold this rank's shards."""
        self._counted = False
        """The store has it that this replica has no more data."""
        self.turn = Turn(round=0, started=clock())

    def restart(self, steps: int = 0, rounds: int = 0) -> None:
        """Start the time again, after a warm-up or a load.

        Args:
            steps: This replica's, since the last round.
            rounds: Rounds so far; all replicas give the same number.
        """
        self.turn = Turn(round=rounds, started=self._clock(), steps=steps)

    def move(
        self,
        replicas: Group,
        store: dist.Store | None,
        rounds: int,
        steps: int,
        *,
        starts: bool,
        is_due: bool = False,
    ) -> None:
        """Go on with other members, who meet in another store; all of them call this.

        Args:
            replicas: Who holds this rank's shards now.
            store: Theirs alone; None: that of the default process group.
            rounds: That are made when what the change has left over is done; of all alike.
            steps: This replica's, since the last of these.
            starts: The time starts again, since this replica has joined, or a round is left over.
            is_due: The time is up: this replica had entered a round that nobody has begun.
        """
        if store is not None:
            self._store = rounds_store("local_sgd", store)
        self.replicas = replicas
        now = self._clock()
        started = now if starts else self.turn.started
        if is_due:
            started = min(started, now - self._config.local_sgd_sync_time)
        exhausted = self.turn.exhausted
        self.turn = Turn(round=rounds, started=started, steps=steps, exhausted=exhausted)
        self._counted &= store is None

    def stepped(self, *, is_made: bool = True) -> Entry:
        """Count a step; return what follows it, `SKIP` for nothing.

        Args:
            is_made: False for a step that a loss scaler has left out, which is not counted.

        Raises:
            SyncError: a rank is gone, or the members have changed.
        """
        if is_made:
            self.turn = stepped(self.turn)
        return self._enter() if self._all_see(self._looks) else Entry.SKIP

    def exhausted(self) -> Entry:
        """Wait for the next round without a step, since this replica has no more data.

        Returns:
            `ROUND`, or `LAST` if no replica has data; after `ROUND` call it again.

        Raises:
            SyncError: a rank is gone, or the members have changed.
        """
        if not self.turn.exhausted:
            self.turn, self._counted = dataclasses.replace(self.turn, exhausted=True), False
        while True:
            if self._all_see(self._waits):
                entry = self._enter()
                if entry is not Entry.SKIP:
                    return entry

    def _waits(self) -> bool:
        if not self._counted:
            self._store.add(_EXHAUSTED, 1)
            self._counted = True
        until = self._clock() + _LOOK_SECONDS
        while not (seen := self._looks()) and self._clock() < until and not self._has_changed():
            time.sleep(_POLL_SECONDS)
        return seen

    def _looks(self) -> bool:
        """Return if some replica has triggered the round; trigger it if this one's time is up."""
        if self._store.check([self.turn.key]):
            return True
        nobody = self.turn.exhausted and (self._store.add(_EXHAUSTED, 0) == self.replicas.size)
        if not is_triggering(self.turn, self._clock(), self._config, all_exhausted=nobody):
            return False
        self._store.set(self.turn.key, "")
        return True

    def _all_see(self, look: Callable[[], bool]) -> bool:
        """Return on all ranks of the replica what its first has seen; raises SyncError."""
        (seen,) = told_by_first(self._own, lambda: [float(look())], 1, self._has_changed)
        return seen > 0

    def _enter(self) -> Entry:
        mine = [float(self.turn.steps), float(self.turn.exhausted)]
        # A replica's ranks enter together or not at all: its shards meet others' one by one.
        told = all_or_none(self._voters, lambda: self.replicas.gather_scalars(mine))
        progress = [Progress(int(steps), bool(exhausted)) for steps, exhausted in told]
        entry = enter(progress, self._config).entry
        self.turn = after(self.turn, entry, self._clock())
        return entry
