"""A-EDiT on real ranks: the replica whose time is up first has all enter a round together.

Belongs here: the clock, the store of the replicas, and the ranks of a replica that go together.
Does not belong here: the decisions (`policies.schedule`), the round itself (`driver`).

The first rank of a replica looks at the store and at the clock at the end of each step. Its ranks
learn what it saw by one scalar all-reduce, so all of them enter at one step. Replicas that have
entered exchange their steps, and all decide alike.

Where members come and go each epoch has a store of its own. A rank that sees a newer roster gives
up the old one by a `SyncError`, at the end of a step, and the others do too. A replica that had
entered a round of which nobody has begun a unit has not entered: its steps count in the next.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies.schedule import (
    Boundary,
    Entry,
    ReplicaProgress,
    Turn,
    after,
    enter,
    is_triggering,
    stepped,
)
from holdfast.local_sgd.sync.group import SyncError
from holdfast.local_sgd.sync.unit_sync import all_or_none
from holdfast.local_sgd.triggers.trigger import BySteps, Change, Replicas

if TYPE_CHECKING:
    import torch.distributed as dist


_EXHAUSTED: Final = "exhausted"
_POLL_SECONDS: Final = 0.02
_LOOK_SECONDS: Final = 1.0
"""Longest time for which a rank without data looks before its replica compares: far less than the
deadline of a collective."""
_numbers: Final = itertools.count()
"""One prefix in the store for each training of a process."""


def _rounds_store(store: dist.Store | None, name: object) -> dist.Store:
    """Return the meeting place: the epoch's store, or that of the default process group."""
    import torch.distributed as dist

    if store is None:
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - no public way
    return dist.PrefixStore(f"holdfast/local_sgd/{name}", store)


class ByTime(BySteps):
    """One replica's time until the next round; every rank of it asks at the same steps."""

    in_step = False

    def __init__(
        self,
        config: LocalSGDConfig,
        who: Replicas,
        *,
        store: dist.Store | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock.

        Args:
            config: τ, and the least number of steps.
            who: The replicas, and the ranks of this one.
            store: A store of all replicas; None: that of the default process group.
            clock: Seconds that never go back.
        """
        super().__init__(config)
        self._who, self._clock = who, clock
        self._store = _rounds_store(store, next(_numbers))
        self._counted = False
        """The store has it that this replica has no more data."""
        self.turn = Turn(round=0, started=clock())

    def rounds(self, made: int) -> int:
        """Those that were entered: the newest may not have begun."""
        del made
        return self.turn.round

    def restart(self) -> None:
        """Begin with the first lone step."""
        self.turn = Turn(round=0, started=self._clock())

    def load(self, clock: Mapping[str, Any]) -> None:
        """Go on from the rounds of a checkpoint; all replicas have the same number."""
        steps = 0 if clock["due"] else clock["alone"]
        self.turn = Turn(round=int(clock["rounds"]), started=self._clock(), steps=int(steps))

    def move(self, change: Change) -> None:
        """Go on with other members, who meet in another store; the time of a joiner begins."""
        if change.store is not None:
            self._store, self._counted = _rounds_store(change.store, "epoch"), False
        now = self._clock()
        started = now if change.joined or change.is_left_over else self.turn.started
        if change.is_up:
            started = min(started, now - self._config.local_sgd_sync_time)
        self.turn = Turn(
            round=change.rounds,
            started=started,
            steps=change.steps,
            exhausted=self.turn.exhausted,
        )

    def stepped(self, steps: int, *, is_made: bool = True) -> Boundary:
        """Count a step, unless a loss scaler has left it out, and look if a round has begun."""
        del steps
        if is_made:
            self.turn = stepped(self.turn)
        enters = self._all_see(self._looks) and self._enter() is not Entry.SKIP
        return Boundary.ROUND if enters else Boundary.NOTHING

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
        while not (seen := self._looks()) and self._clock() < until and not self._who.has_changed():
            time.sleep(_POLL_SECONDS)
        return seen

    def _looks(self) -> bool:
        """Return True if a replica has triggered the round; trigger it if this one's time is up."""
        if self._store.check([self.turn.key]):
            return True
        size = self._who.group.size
        nobody = self.turn.exhausted and self._store.add(_EXHAUSTED, 0) == size
        if not is_triggering(self.turn, self._clock(), self._config, all_exhausted=nobody):
            return False
        self._store.set(self.turn.key, "")
        return True

    def _all_see(self, look: Callable[[], bool]) -> bool:
        """Tell on all ranks of the replica what its first sees in the store.

        Raises:
            SyncError: on all of them: there is a newer roster, or the store is gone with its host.
        """
        import torch.distributed as dist

        seen, why = False, ""
        if self._who.own.rank == 0:
            try:
                why = "there is a newer roster" if self._who.has_changed() else ""
                seen = not why and look()
            except dist.DistError as error:
                why = f"the store of the replicas is gone ({error})"
        said, failed = self._who.own.max_scalars([float(seen), float(bool(why))])
        if failed:
            raise SyncError(
                why or "the first rank of this replica has found other members, or none"
            )
        return said > 0

    def _enter(self) -> Entry:
        mine, group = [float(self.turn.steps), float(self.turn.exhausted)], self._who.group
        # A replica's ranks enter together or not at all: its shards meet others' one by one.
        told = all_or_none(self._who.voters, lambda: group.gather_scalars(mine))
        progress = [ReplicaProgress(int(steps), bool(exhausted)) for steps, exhausted in told]
        entry = enter(progress, self._config).entry
        self.turn = after(self.turn, entry, self._clock())
        return entry
