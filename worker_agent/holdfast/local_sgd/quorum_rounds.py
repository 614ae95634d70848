"""Rounds without a barrier: those who have met catch up, and reduce among themselves.

Belongs here: the course of such a round on one rank. Does not belong here: the meeting
(`quorum_turns`), the transfers (`sync.catching_up`), the sync of a unit (`sync.unit_sync`), and the
hooks of a framework, which say when a step is over.

The round runs at once, at the end of the step, and not in the next forward: else those who wait in
it would wait for a slow member's data and forward.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.errors import LocalSGDConfigError
from holdfast.local_sgd.pipelined_round import PipelinedRound
from holdfast.local_sgd.policies import quorum
from holdfast.local_sgd.policies.roster import Plan
from holdfast.local_sgd.policies.schedule import Entry
from holdfast.local_sgd.quorum_turns import Met, QuorumTurns
from holdfast.local_sgd.sync.catching_up import catch_up
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.subsets import Subsets
from holdfast.local_sgd.sync.unit_sync import Outcome, UnitSync, all_or_none
from holdfast.local_sgd.sync.units import Unit

if TYPE_CHECKING:
    import torch.distributed as dist

log: Final = logging.getLogger("holdfast")


class QuorumRounds:
    """Rounds of one replica with those who come in time; each of its ranks has one."""

    def __init__(
        self,
        config: LocalSGDConfig,
        sync: UnitSync,
        units: Sequence[Unit],
        before_write: Callable[[int], None],
        has_changed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take what synchronises.

        Args:
            config: A-EDiT's time, quorum, window and discount.
            sync: Of all replicas.
            units: In the order of a round.
            before_write: Called with the number of a unit whose weights are to be written next.
            has_changed: Tells of a newer roster, where members come and go.

        Raises:
            LocalSGDConfigError: rounds end by steps.
        """
        if not config.use_async:
            raise LocalSGDConfigError(
                f"quorum={config.quorum}, use_async=False: rounds that end by steps wait for all "
                "replicas; set use_async=True, or leave quorum at None"
            )
        self._config, self._sync, self._units = config, sync, units
        self._before_write, self._has_changed = before_write, has_changed
        self._whole = sync.sync
        self.turns = QuorumTurns(config, sync.sync, sync.shard, has_changed=has_changed)
        self._name = f"holdfast_quorum_{self.turns.number}_{sync.shard.rank}"
        """Of groups: alike on the same shard of all replicas, and new in each process."""
        self._subsets = self._new_subsets()
        self._under_way: PipelinedRound | None = None
        """A round that has begun and not ended."""
        self._again: int | None = None
        """First unit that all replicas do again, after a change of members."""
        self._finished: list[Outcome] = []
        """Units of that round that are over."""
        self.together = False
        """All replicas were in the round that the last step has ended."""
        self.missed = 0
        """Rounds that this replica had missed when it came to its newest one."""

    @property
    def begun(self) -> frozenset[int]:
        """Units whose sync has begun and is not finished."""
        return frozenset() if self._under_way is None else self._under_way.begun

    @property
    def has_left_over(self) -> bool:
        """A change of members has left units that all replicas do again: call `settle`."""
        return self._again is not None

    def leave(self) -> None:
        """Give up the groups of the members that were, which have failed."""
        if self._under_way is not None:
            self._under_way.drop_flight()
        self._subsets.end()

    def move(
        self,
        replicas: Group,
        epoch: tuple[int, dist.Store | None],
        plan: Plan | None,
        steps: int,
    ) -> None:
        """Go on with other members, which a plan has brought to one round; all of them call this.

        Args:
            replicas: Who holds this rank's shards now.
            epoch: Its number, alike for all, and their store; None: that of the default group.
            plan: What is left over: units that all do again; None: nobody has anchors.
            steps: This replica's, since its last round.
        """
        if self._under_way is not None:
            self._finished = self._under_way.outcomes
        self._whole, self._under_way = replicas, None
        number, store = epoch
        self._name = f"holdfast_quorum_epoch_{number}_{self._sync.shard.rank}"
        self.turns.move(replicas, store, 0 if plan is None else plan.round, steps)
        self._subsets = self._new_subsets()
        self._again = plan.again[0] if plan is not None and plan.again else None
        self._finished = self._finished if self._again is not None else []

    def settle(self, work: float) -> list[Outcome] | None:
        """Make what a change of members has left over, with all replicas; None: nothing.

        Raises:
            SyncError: a rank is gone.
        """
        if self._again is None:
            return None
        outcomes = self._finished + self._reduce(self._whole, work, self._again)
        self._finished, self._again, self.together = [], None, True
        self.turns.settled()
        return outcomes

    def stepped(self, work: float) -> list[Outcome] | None:
        """Count a step, and make the round if this replica is in one.

        Args:
            work: This replica's steps or tokens since its last round.

        Returns:
            What became of each unit; None: there was no round for this replica.

        Raises:
            SyncError: a rank is gone.
        """
        self.together = False
        met = self.turns.stepped()
        return None if met is None else self._run(met, work)

    def exhausted(self, work: float) -> tuple[Entry, list[Outcome]]:
        """Wait for a round without data, and make it; after a `LAST` one nobody has any.

        Args:
            work: This replica's steps or tokens since its last round.

        Raises:
            SyncError: a rank is gone.
        """
        met = self.turns.exhausted()
        return met.entry, self._run(met, work)

    def sync_all(self, work: float) -> list[Outcome]:
        """Synchronise all replicas now; all of them call it, also those that are late."""
        return self._round(self._whole, work)

    def _new_subsets(self) -> Subsets:
        return Subsets(self._whole, self.turns.store, self._name, has_changed=self._has_changed)

    def _run(self, met: Met, work: float) -> list[Outcome]:
        group = all_or_none(self._sync.voters, lambda: self._subsets.of(met.replicas, met.number))
        outcomes = self._round(group, work)
        self.together = len(met.replicas) == self._whole.size
        return outcomes

    def _round(self, group: Group, work: float) -> list[Outcome]:
        self.missed = catch_up(
            self._units, group, self._config, self._before_write, self._sync.voters
        )
        if self.missed:
            carried = quorum.carry(work, self.missed, self._config)
            work = carried.steps
            log.info("local SGD: replica %d is %s", self._whole.rank, carried.reason)
        return self._reduce(group, work, 0)

    def _reduce(self, group: Group, work: float, first: int) -> list[Outcome]:
        """Make the round of the units from the first on."""
        self._sync.sync = group
        made = PipelinedRound(
            self._sync, self._units, steps=work, joins=True, before_write=self._before_write
        )
        made.go_on_from(first)
        self._under_way = made
        made.complete()
        self._under_way = None
        self.turns.resume()
        return made.outcomes
