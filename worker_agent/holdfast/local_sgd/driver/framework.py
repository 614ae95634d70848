"""Calls of a script on its replicas, alike under all frameworks.

Belongs here: these calls, and which trigger a setting means. Does not belong here: the course of a
round (`driver`), and a framework's own calls (`frameworks`, `megatron`).

A new framework is one module with a subclass: it makes its `units`, `inner` and `driver`, calls the
driver before and after a step, and says how its weights are written
(tests/local_sgd/process/test_new_parts.py has one of 60 lines).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.driver.adapter import Adapter
from holdfast.local_sgd.driver.driver import Driver
from holdfast.local_sgd.driver.rounds import log_batch, log_units
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.unit_sync import Outcome, UnitSync
from holdfast.local_sgd.triggers.trigger import BySteps, Replicas, Trigger

if TYPE_CHECKING:
    import torch.distributed as dist

    from holdfast.flash.trainer.leaves import Stateful


class Framework(Adapter):
    """Replicas of one model that step alone and agree on their weights in rounds."""

    driver: Driver
    outcomes: list[Outcome]
    """Of the newest round, by unit."""

    @property
    def config(self) -> LocalSGDConfig:
        """When replicas agree, and how."""
        return self.driver.config

    @property
    def replicas(self) -> Group:
        """The ranks that hold this rank's shards, one of each replica that is there."""
        return self.driver.who.group

    @property
    def shard_group(self) -> Group:
        """The ranks of this replica."""
        return self.driver.who.own

    @property
    def steps(self) -> int:
        """Steps of the inner optimizer so far; those that a loss scaler has left out too."""
        return self.driver.steps

    @property
    def alone(self) -> int:
        """Steps since the last round; by time without those that a loss scaler has left out."""
        return self.driver.alone

    @property
    def due(self) -> bool:
        """A round has been entered, and has not begun."""
        return self.driver.due

    @property
    def joined(self) -> bool:
        """This replica came to others that train, and has their state: load no checkpoint."""
        return self.driver.joined

    @property
    def rounds(self) -> int:
        """Rounds so far, on all replicas alike; by time the number to save under."""
        return self.driver.rounds

    @property
    def is_warming_up(self) -> bool:
        """Gradients are averaged over the replicas."""
        return self.driver.is_warming_up

    @property
    def are_fixed(self) -> bool:
        """Replicas neither come nor go, and one checkpoint has all of them."""
        return not self.driver.who.changes

    @property
    def saves(self) -> bool:
        """This replica is to save: each of fixed ones, else the first, whose state all can load."""
        return self.are_fixed or self.replicas.rank == 0

    @property
    def place(self) -> tuple[int, int]:
        """This replica's number in a checkpoint, and how many that has: one, where they change."""
        return (self.replicas.rank, self.replicas.size) if self.are_fixed else (0, 1)

    def sync(self) -> None:
        """Agree now, such as before an export of the weights; all ranks call it.

        Raises:
            SyncError: a rank is gone.
        """
        self.driver.sync()

    def finish(self, entered: Callable[[], object] | None = None) -> None:
        """End the training of this replica, which has no more data; its weights are the anchors.

        With A-EDiT it joins the others' rounds, without a weight, until no replica has data. With
        EDiT all replicas call it after the same step.

        Args:
            entered: Called for each of these rounds, where the others may save: after it, and under
                FSDP2 where it has been entered. Does what the script's loop does there, such as a
                save of all ranks, and returns True where that ends, such as after SAVE_AND_STOP.

        Raises:
            SyncError: a rank is gone.
        """
        self.driver.finish(_nothing if entered is None else entered)

    def carry(self, name: str, one: Stateful) -> None:
        """Give replicas that come later a scheduler's state, the place in the data, or the like.

        A replica that has come later takes that state at once. Fixed replicas have no need.

        Args:
            name: The same on all replicas.
            one: Has `state_dict`, of plain data such as a scheduler's, and `load_state_dict`.

        Raises:
            LocalSGDError: the state is no plain data.
        """
        self.driver.who.carry(name, one)

    def clock(self) -> dict[str, Any]:
        """This replica's counters, for a checkpoint of any framework."""
        return self.driver.clock()

    def set_clock(self, clock: Mapping[str, Any]) -> None:
        """Go on from counters of a checkpoint; a round that was under way is not."""
        self.driver.set_clock(clock)

    def regroup(self, sync_ranks: dist.ProcessGroup) -> None:
        """Go on with other replicas, after one was lost or has come; all members call it.

        For a script that makes groups by itself; with `Members` nobody calls it. All members must
        have each unit at one round. Make a new `Checkpointer`.

        Args:
            sync_ranks: The ranks that hold this rank's shards, one of each replica that is there.
        """
        driver, old = self.driver, self.replicas
        if old.is_own:
            old.close()
        driver.who.group = Group(sync_ranks, timeout=old.timeout)
        driver.unit_sync.regroup(self.units, self.replicas, self.shard_group)
        driver.round.drop_flight()

    def trigger(self, config: LocalSGDConfig, who: Replicas, sync: UnitSync, first: str) -> Trigger:
        """Make the trigger of rounds, by the settings; a subclass may have another."""
        return trigger_of(config, who, sync, first)

    def after_round(self, outcomes: list[Outcome]) -> None:
        """Keep what a round did, and log it; loudly where replicas were left out."""
        self.outcomes = outcomes
        if self.replicas.rank == 0 and self.shard_group.rank == 0:
            if self.in_forward:
                log_units(outcomes)
            else:
                log_batch(outcomes, shows_clipping=self.config.is_debug)

    def share_weights(self, source: int) -> None:
        """Give all replicas the weights of the one with this rank; raises SyncError."""
        for unit in self.units:
            for one in unit.tensors():
                self.replicas.begin_broadcast(one, source).wait()


def _nothing() -> None:
    """Do nothing at the end of the data."""


def trigger_of(config: LocalSGDConfig, who: Replicas, sync: UnitSync, first: str) -> Trigger:
    """Return the trigger that the settings ask for.

    Args:
        config: By steps, by time, or by measurement.
        who: The replicas.
        sync: Of the units.
        first: Name of the first unit of a round.
    """
    if config.use_async:
        from holdfast.local_sgd.triggers.by_time import ByTime

        return ByTime(config, who)
    if config.switching != "off":
        from holdfast.local_sgd.triggers.by_cost import measured

        return measured(config, who, sync, first)
    return BySteps(config)
