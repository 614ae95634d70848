"""EDiT for a model under FSDP2's `fully_shard`: five lines in a training script.

```python
mesh = init_device_mesh("cuda", (replicas, shards), mesh_dim_names=("replicate", "shard"))
for block in model.blocks:
    fully_shard(block, mesh=mesh["shard"])
fully_shard(model, mesh=mesh["shard"])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
local = LocalSGD(model, optimizer, mesh, LocalSGDConfig(local_sgd_sync_interval=16), outer)
```

Belongs here: what a script calls. Does not belong here: the course of a round (`fsdp2_rounds`,
`pipelined_round`), which parameters are a unit (`fsdp2_units`), the state in a checkpoint
(`shards`).

In the *warm-up* a hook behind FSDP2's reduce-scatter averages the gradients over the replicas,
which is what HSDP does. Afterwards a replica steps alone. After the step that ends a round, the
forward of the next step's first micro-batch synchronises: each unit's hook writes the unit's
weights just before FSDP2 gathers them, while the next unit's reduction is on its way. Evaluations,
later micro-batches and recomputation synchronise nothing. What the forward did not reach is
synchronised before the optimizer's step.

Facts of FSDP2 on torch 2.15 that this stands on; tests/local_sgd/process/test_fsdp2_facts.py has a
test for each:

- A 2-D mesh with its all-reduce turned off has no gradients at all: so the mesh is 1-D.
- A replica's gradients are the mean over its own M ranks. Nothing needs scaling.
- With sums forced (`set_force_sum_reduction_for_comms`) FSDP2 divides behind the hook. A mean over
  replicas commutes with that.
- Only a pre-hook that is registered behind `fully_shard`, with `prepend`, comes before the gather.
- A root stays whole after an evaluation, and a prefetch gathers before the hook: both are dropped
  before a write.
- Since 2.15 gradients are reduced in fp32 where only `param_dtype` is given; 2.13 reduced in that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.trainer.shards import Shards
from holdfast.local_sgd.combinations import check_together
from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.elastic import Carried
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.fsdp2_hooks import hook_modules, unhook_gradients
from holdfast.local_sgd.fsdp2_members import groups_of, has_changed_of, members_of
from holdfast.local_sgd.fsdp2_rounds import FSDP2Rounds
from holdfast.local_sgd.fsdp2_units import ShardedUnit, units_of
from holdfast.local_sgd.members import Members
from holdfast.local_sgd.quorum_rounds import QuorumRounds
from holdfast.local_sgd.shards import shards_of
from holdfast.local_sgd.spanning import spanning
from holdfast.local_sgd.switch import RoundSwitch, Switch, load, round_switch_of, saved, switch_of
from holdfast.local_sgd.sync.configured import outer_of, unit_sync_of
from holdfast.local_sgd.sync.group import TIMEOUT, Group
from holdfast.local_sgd.sync.units import Outer, Unit
from holdfast.local_sgd.turns import Turns

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

_OWNER: Final = "_holdfast_local_sgd"
"""Attribute of a model that has a `LocalSGD`."""


def local_sgd_of(model: nn.Module) -> LocalSGD:
    """Return the `LocalSGD` that was made for a model.

    Raises:
        LocalSGDError: there is none.
    """
    found: LocalSGD | None = vars(model).get(_OWNER)
    if found is None:
        raise LocalSGDError(
            f"model: no LocalSGD was made for this {type(model).__name__}: make one, "
            "LocalSGD(model, optimizer, mesh, config), and pass the same model"
        )
    return found


class LocalSGD(FSDP2Rounds):
    """Replicas of one model that step alone and agree on their weights in rounds."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        mesh: DeviceMesh | Members | None,
        config: LocalSGDConfig,
        outer: OuterOptimizerConfig | None = None,
        gta: GTAConfig | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        """Register the hooks, and give all replicas the weights of the first; a collective.

        Args:
            model: `fully_shard` has been called on it, with the mesh's second dimension.
            optimizer: The inner optimizer, whose steps count; of several, those of the last.
            mesh: Two dimensions: replicas, and the ranks of a replica. Either may have one rank.
                Members in its place may come and go (`members.mesh_of` for `fully_shard`).
            config: When replicas synchronise, and how.
            outer: The outer optimizer; None: none.
            gta: How deltas become one; None: their mean.
            timeout: Seconds until a collective of a sync has failed; members have their own.

        Raises:
            LocalSGDConfigError: settings contradict each other.
            MembersError: no membership came.
            LocalSGDError: the model or the mesh does not fit; the message says what to change.
        """
        check_together(config, outer, gta)
        _refuse_second(model)
        self.config, self.model = config, model
        self.optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
        self.replicas, self.shard_group = self._groups_of(model, mesh, timeout)
        self.own_ranks = self.shard_group.ranks
        self.modules = self._units_of(model)
        self.trained = [one for one in self.modules if one.trained]
        self.units = _units(self.trained, outer_of(config, outer))
        groups, is_whole = (self.replicas, self.shard_group), mesh is not None  # FSDP1 gives none
        self._sync = unit_sync_of(config, gta, groups, whole=is_whole, has_quorum=is_whole)
        self.switch = self._switch_of(mesh)
        self.steps, self.alone, self.tokens = 0, 0, 0
        self.due, self.ends = False, False
        self.under_way, self.joined, self.written, self.outcomes = None, False, set(), []
        self.turns = self.quorum = None
        if config.quorum is not None:
            self.quorum = QuorumRounds(
                config, self._sync, self.units, self._drop_gathered, has_changed_of(mesh) or _never
            )
        elif config.use_async:
            self.turns = Turns(
                config, self.replicas, self.shard_group, has_changed=has_changed_of(mesh)
            )
        self._members = members_of(self, mesh, self._sync)
        self._meet_first()
        fixed = self.replicas if self._are_fixed else None  # fixed members are known by now
        self._spanning = spanning(fixed, model, by_time=config.use_async, own=True)
        vars(model)[_OWNER] = self
        before = hook_modules(self.modules, self.before_forward, self._average)
        self._handles = [*before, *self._hook_optimizers()]

    @property
    def rounds(self) -> int:
        """Rounds that the steps so far have ended, on all replicas alike; `due`: the last runs yet.

        A-EDiT's replicas make unlike numbers of steps. So they save where `together` is true,
        after this number of rounds.
        """
        turns = self.quorum.turns if self.quorum is not None else self.turns
        if turns is not None:
            return turns.turn.round
        if self.switch is not None and not isinstance(self.switch, RoundSwitch):
            return self.switch.rounds
        is_ended = self.due or self.under_way is not None
        return min((unit.round for unit in self.units), default=0) + is_ended

    @property
    def together(self) -> bool:
        """All replicas are at the end of one round here: a checkpoint has all of them.

        Without a quorum it is `due`, since all enter every round.
        """
        return self.due if self.quorum is None else self.quorum.together

    def finish(self, entered: Callable[[], object] | None = None) -> None:
        """End the training of this replica, which has no more data; its weights are the anchors.

        With A-EDiT it joins the others' rounds, without a weight, until no replica has data. With
        EDiT all replicas call it after the same step.

        Args:
            entered: Called where a round has been entered and the others may save, if `together`
                is true: a checkpoint needs all ranks. Does what the script's loop does there, and
                returns True where that ends, such as after SAVE_AND_STOP.

        Raises:
            SyncError: a rank is gone.
        """
        if self.turns is None and self.quorum is None:
            self._sync_last()
            return
        self._complete()
        if self._wants_anchors:
            self.take_anchors()  # it has made no step, and the others take theirs with it
        if not self.units or not self.units[0].has_anchors:
            return
        if self.quorum is not None:
            self._finish_by_quorum(self.quorum, entered)
        elif self.turns is not None:
            self._finish_by_time(self.turns, entered)

    def shards(self) -> Shards:
        """Return the whole training state for a `Checkpointer`: `shards=local.shards()`.

        With members that come and go it is this replica's, whole by itself, whoever is there.
        """
        place = (self.replicas.rank, self.replicas.size) if self._are_fixed else (0, 1)
        return shards_of(self, self.model, self.optimizers, place)

    @property
    def saves(self) -> bool:
        """This replica is to save: each of fixed ones, else the first, whose state all can load."""
        return self._are_fixed or self.replicas.rank == 0

    @property
    def _are_fixed(self) -> bool:
        return self._members is None or not self._members.changes

    def clock(self) -> dict[str, Any]:
        """Return this replica's counters, for a checkpoint."""
        return {
            "steps": self.steps,
            "alone": self.alone,
            "tokens": self.tokens,
            "due": self.due,
            "rounds": self.rounds,
            **saved(self.switch),
        }

    def set_clock(self, clock: Mapping[str, Any]) -> None:
        """Go on from counters of a checkpoint; a round that was under way is not."""
        self.steps, self.alone, self.due = clock["steps"], clock["alone"], clock["due"]
        self.tokens = clock["tokens"]
        self.under_way = None
        turns = self.quorum.turns if self.quorum is not None else self.turns
        if turns is not None:
            turns.restart(0 if self.due else self.alone, clock["rounds"])
        load(self.switch, clock, self.steps, self.alone)

    def regroup(self, sync_ranks: dist.ProcessGroup) -> None:
        """Go on with other replicas, after one was lost or has come; all members call it.

        For a script that makes groups by itself; with `Members` nobody calls it. After a
        `SyncError` in a forward call `model.reset_iter_state()`, which drops that forward, then
        this, and repeat the step. All members must have each unit at one round. Make a new
        `Checkpointer`.

        Args:
            sync_ranks: The ranks that hold this rank's shards, one of each replica that is there.

        Raises:
            LocalSGDError: with a quorum, where late replicas do not learn that one is gone.
        """
        if self.quorum is not None:
            raise LocalSGDError(
                f"quorum={self.config.quorum}: replicas that were late do not learn of a loss, so "
                "no group of those that are left can be made: restart the job from its newest "
                "checkpoint, or leave quorum at None"
            )
        if self.replicas.is_own:
            self.replicas.close()
        self.replicas = Group(sync_ranks, timeout=self.replicas.timeout)
        self._sync.regroup(self.units, self.replicas, self.shard_group)
        if self.turns is not None:
            self.turns.replicas = self.replicas
        if self.switch is not None:
            self.switch.replicas = self.replicas
        if self.under_way is not None:
            self.under_way.drop_flight()

    def carry(self, name: str, one: Carried) -> None:
        """Give replicas that come later a scheduler's state, the place in the data, or the like.

        On a replica that has come later it takes that state at once. Fixed replicas have no need.

        Args:
            name: The same on all replicas.
            one: Has `state_dict`, of plain data such as a scheduler's, and `load_state_dict`.

        Raises:
            LocalSGDError: the state is no plain data.
        """
        if self._members is not None:
            self._members.carry(name, one)

    def processed(self, tokens: int) -> None:
        """Count tokens of this replica, where `step_weight_by="tokens"` weighs by them."""
        self.tokens += tokens

    def skipped(self) -> None:
        """Count a step that a `GradScaler` has left out; the replicas count alike."""
        self._is_step = True
        self._after_step()

    def detach(self) -> None:
        """Remove the hooks; every replica goes on alone."""
        vars(self.model).pop(_OWNER, None)
        for handle in self._handles:
            handle.remove()
        if self._spanning is not None:
            self._spanning.leave()
        unhook_gradients(self.modules)

    def _groups_of(
        self,
        model: nn.Module,
        mesh: DeviceMesh | Members | None,
        timeout: float,
    ) -> tuple[Group, Group]:
        return groups_of(mesh, timeout)

    def _units_of(self, model: nn.Module) -> list[ShardedUnit]:
        return units_of(model, self.own_ranks)

    def _switch_of(self, mesh: DeviceMesh | Members | None) -> Switch | None:
        if has_changed_of(mesh) is None:
            return switch_of(self.config, self.replicas, self.shard_group)
        first = self.units[0].name if self.units else ""
        return round_switch_of(self.config, self._sync, self.shard_group, first)

    def _hook_optimizers(self) -> list[Any]:
        before = [one.register_step_pre_hook(self._before_step) for one in self.optimizers]
        return [*before, self.optimizers[-1].register_step_post_hook(self._after_step)]


def _units(trained: Sequence[ShardedUnit], outer: Outer) -> list[Unit]:
    return [Unit(one.name, one.tensors, outer) for one in trained]


def _never() -> bool:
    """Return that fixed replicas have not changed."""
    return False


def _refuse_second(model: nn.Module) -> None:
    if _OWNER in vars(model):
        raise LocalSGDError(
            f"model: this {type(model).__name__} has a LocalSGD: call detach() on it before "
            "another is made, since both would synchronise"
        )
