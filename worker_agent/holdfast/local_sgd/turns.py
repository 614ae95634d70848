"""A-EDiT on real ranks: the replica whose time is up first has all enter a round together.

Belongs here: the clock, the store of the sync group, and the ranks of a replica that go together.
Does not belong here: the decisions (`policies.schedule`), the round itself (`pipelined_round`).

The first rank of a replica looks at the store and at the clock at the end of each step; its ranks
learn what it saw by one scalar all-reduce, so all of them enter at one step. Replicas that have
entered exchange their steps, and all decide alike.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
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
from holdfast.local_sgd.sync.group import Group

if TYPE_CHECKING:
    import torch.distributed as dist

_EXHAUSTED: Final = "exhausted"
_POLL_SECONDS: Final = 0.02
_LOOK_SECONDS: Final = 1.0
"""Longest time for which a rank without data looks before its replica compares: far less than the
deadline of a collective."""
_numbers: Final = itertools.count()
"""One prefix in the store for each training of a process."""


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
    ) -> None:
        """Start the clock.

        Args:
            config: τ, and the least number of steps.
            replicas: The ranks that hold this rank's shards.
            own: The ranks of this replica.
            store: A store of all replicas; None: that of the default process group.
            clock: Seconds that never go back.
        """
        import torch.distributed as dist

        if store is None:
            store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - no public way
        self._store = dist.PrefixStore(f"holdfast/local_sgd/{next(_numbers)}", store)
        self._config, self._own, self._clock = config, own, clock
        self.replicas = replicas
        """The ranks that hold this rank's shards."""
        self.turn = Turn(round=0, started=clock())

    def restart(self, steps: int = 0, rounds: int = 0) -> None:
        """Start the time again, after a warm-up or a load.

        Args:
            steps: This replica's, since the last round.
            rounds: Rounds so far; all replicas give the same number.
        """
        self.turn = Turn(round=rounds, started=self._clock(), steps=steps)

    def stepped(self) -> Entry:
        """Count a step; return what follows it, `SKIP` for nothing.

        Raises:
            SyncError: a rank is gone.
        """
        self.turn = stepped(self.turn)
        seen = self._own.rank == 0 and self._looks()
        return self._enter() if self._all_see(seen=seen) else Entry.SKIP

    def exhausted(self) -> Entry:
        """Wait for the next round without a step, since this replica has no more data.

        Returns:
            `ROUND`, or `LAST` if no replica has data; after `ROUND` call it again.

        Raises:
            SyncError: a rank is gone.
        """
        if not self.turn.exhausted:
            self.turn = dataclasses.replace(self.turn, exhausted=True)
            if self._own.rank == 0:
                self._store.add(_EXHAUSTED, 1)
        while True:
            if self._all_see(seen=self._own.rank == 0 and self._waits()):
                entry = self._enter()
                if entry is not Entry.SKIP:
                    return entry

    def _waits(self) -> bool:
        until = self._clock() + _LOOK_SECONDS
        while not (seen := self._looks()) and self._clock() < until:
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

    def _all_see(self, *, seen: bool) -> bool:
        return self._own.max_scalars([float(seen)])[0] > 0

    def _enter(self) -> Entry:
        mine = [float(self.turn.steps), float(self.turn.exhausted)]
        told = self.replicas.gather_scalars(mine)
        progress = [Progress(int(steps), bool(exhausted)) for steps, exhausted in told]
        entry = enter(progress, self._config).entry
        self.turn = after(self.turn, entry, self._clock())
        return entry
