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
from typing import Final

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.errors import LocalSGDConfigError
from holdfast.local_sgd.pipelined_round import PipelinedRound
from holdfast.local_sgd.policies import quorum
from holdfast.local_sgd.policies.schedule import Entry
from holdfast.local_sgd.quorum_turns import Met, QuorumTurns
from holdfast.local_sgd.sync.catching_up import catch_up
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.subsets import Subsets
from holdfast.local_sgd.sync.unit_sync import Outcome, UnitSync
from holdfast.local_sgd.sync.units import Unit

log: Final = logging.getLogger("holdfast")


class QuorumRounds:
    """Rounds of one replica with those who come in time; each of its ranks has one."""

    def __init__(
        self,
        config: LocalSGDConfig,
        sync: UnitSync,
        units: Sequence[Unit],
        before_write: Callable[[int], None],
    ) -> None:
        """Take what synchronises.

        Args:
            config: A-EDiT's time, quorum, window and discount.
            sync: Of all replicas.
            units: In the order of a round.
            before_write: Called with the number of a unit whose weights are to be written next.

        Raises:
            LocalSGDConfigError: rounds end by steps.
        """
        if not config.use_async:
            raise LocalSGDConfigError(
                f"quorum={config.quorum}, use_async=False: rounds that end by steps wait for all "
                "replicas; set use_async=True, or leave quorum at None"
            )
        self._config, self._sync, self._units = config, sync, units
        self._before_write = before_write
        self._whole = sync.sync
        self.turns = QuorumTurns(config, sync.sync, sync.shard)
        name = f"holdfast_quorum_{self.turns.number}_{sync.shard.rank}"
        self._subsets = Subsets(self._whole, self.turns.store, name)
        self.together = False
        """All replicas were in the round that the last step has ended."""
        self.missed = 0
        """Rounds that this replica had missed when it came to its newest one."""

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

    def finish(self, work: float, ended: Callable[[list[Outcome]], None]) -> None:
        """Join the others' rounds without data, until none has any; the weights are the anchors.

        Args:
            work: This replica's steps or tokens since its last round; they count in the next.
            ended: Called with the outcomes of each round.
        """
        entry = Entry.ROUND
        while entry is not Entry.LAST:
            met = self.turns.exhausted()
            ended(self._run(met, work))
            entry, work = met.entry, 0.0

    def sync_all(self, work: float) -> list[Outcome]:
        """Synchronise all replicas now; all of them call it, also those that are late."""
        return self._round(self._whole, work)

    def _run(self, met: Met, work: float) -> list[Outcome]:
        outcomes = self._round(self._subsets.of(met.replicas, met.number), work)
        self.together = len(met.replicas) == self._whole.size
        return outcomes

    def _round(self, group: Group, work: float) -> list[Outcome]:
        self.missed = catch_up(self._units, group, self._config, self._before_write)
        if self.missed:
            carried = quorum.carry(work, self.missed, self._config)
            work = carried.steps
            log.info("local SGD: replica %d is %s", self._whole.rank, carried.reason)
        self._sync.sync = group
        made = PipelinedRound(
            self._sync, self._units, steps=work, joins=True, before_write=self._before_write
        )
        made.complete()
        self.turns.resume()
        return made.outcomes
