"""A framework: what a script calls on its replicas, and what a driver asks, alike under all.

Belongs here: these calls, with what they do where a framework needs nothing, and which trigger a
setting means. Does not belong here: the course of a round (`driver`), and a framework's own calls
(`frameworks`, `megatron`).

A new framework is one module with a subclass: it makes its `units`, `inner` and `driver`, calls the
driver before and after a step, and says how its weights are written
(tests/local_sgd/process/test_new_parts.py has one of 60 lines).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from holdfast.local_sgd.combinations import check_together
from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.driver.driver import Adapter, Driver
from holdfast.local_sgd.driver.rounds import log_batch, log_units
from holdfast.local_sgd.errors import LocalSGDConfigError
from holdfast.local_sgd.sync.configured import reducer_of
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.unit_sync import Outcome, UnitSync
from holdfast.local_sgd.triggers.trigger import BySteps, Replicas

if TYPE_CHECKING:
    import torch.distributed as dist

    from holdfast.flash.trainer.leaves import Stateful
    from holdfast.local_sgd.driver.replicas import FixedMembers


class Framework(Adapter):
    """Replicas of one model that step alone and agree on their weights in rounds."""

    switches = False
    """It measures what a round costs, so a trigger may choose the interval."""
    counts_tokens = False
    """Scripts tell the tokens of a step, so replicas may weigh by them."""
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
        self.driver.finish(entered or (lambda: None))

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

    def check_settings(
        self, config: LocalSGDConfig, outer: OuterOptimizerConfig | None, gta: GTAConfig | None
    ) -> None:
        """Refuse settings that contradict each other, or ask for what this framework has not.

        Raises:
            LocalSGDConfigError: names the field, its value, and what to do.
        """
        check_together(config, outer, gta)
        if config.step_weight_by != "steps" and not self.counts_tokens:
            raise LocalSGDConfigError(
                f"step_weight_by={config.step_weight_by!r}: with DDP and Megatron nobody tells the "
                "tokens; leave it at its default"
            )
        if config.switching != "off" and not self.switches:
            raise LocalSGDConfigError(
                f'switching="{config.switching}": under FSDP1 and Megatron nobody measures what a '
                'round costs; leave it at "off"'
            )

    def drive(
        self,
        config: LocalSGDConfig,
        gta: GTAConfig | None,
        who: FixedMembers,
        *,
        first: str,
    ) -> None:
        """Make the driver; its `start` meets the other replicas.

        Args:
            config: When replicas agree, and how.
            gta: How deltas become one; None: their weighted mean.
            who: The replicas.
            first: Name of the first unit of a round.
        """
        self.outcomes = []
        clip_scope: Literal["unit", "batch"] = "unit" if self.in_forward else "batch"
        reducer = reducer_of(config, gta)
        sync = UnitSync(config, reducer, who.group, who.own, clip_scope=clip_scope)
        self.driver = Driver(config, self, who, sync, self.trigger(config, who, sync, first))

    def trigger(self, config: LocalSGDConfig, who: Replicas, sync: UnitSync, first: str) -> BySteps:
        """Make the trigger of rounds, by the settings; a subclass may have another.

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

    def after_round(self, outcomes: list[Outcome]) -> None:
        """Keep what a round did, by unit, and log it; none: others have given its end."""
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
