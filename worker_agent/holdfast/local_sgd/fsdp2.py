"""EDiT for a model under FSDP2's `fully_shard`: five lines in a training script.

```python
mesh = init_device_mesh("cuda", (replicas, shards), mesh_dim_names=("replicate", "shard"))
for block in model.blocks:
    fully_shard(block, mesh=mesh["shard"])
fully_shard(model, mesh=mesh["shard"])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
local = LocalSGD(model, optimizer, mesh, LocalSGDConfig(local_sgd_sync_interval=16), outer)
```

Belongs here: FSDP2's hooks, and what they call when. Does not belong here: which parameters are a
unit (`fsdp2_units`), the order of a round (`pipelined_round`), the state in a checkpoint
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
from holdfast.local_sgd.fsdp2_members import average, groups_of, members_of
from holdfast.local_sgd.fsdp2_units import (
    BeforeForward,
    ShardedUnit,
    refuse_new_parameters,
    units_of,
)
from holdfast.local_sgd.members import Members
from holdfast.local_sgd.pipelined_round import PipelinedRound, log_outcomes
from holdfast.local_sgd.policies.schedule import Entry, Phase, is_due, phase
from holdfast.local_sgd.shards import shards_of
from holdfast.local_sgd.sync.configured import outer_of, unit_sync_of
from holdfast.local_sgd.sync.group import TIMEOUT, Group
from holdfast.local_sgd.sync.unit_sync import Outcome, all_or_none
from holdfast.local_sgd.sync.units import Unit, check_equal
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


class LocalSGD:
    """Replicas of one model that step alone and agree on their weights in rounds."""

    optimizers: list[Any]
    """Inner optimizers."""
    replicas: Group
    """The ranks that hold this rank's shards, one of each replica."""
    shard_group: Group
    """The ranks of this replica."""
    own_ranks: dist.ProcessGroup
    """The process group of `shard_group`."""
    modules: list[ShardedUnit]
    """What `fully_shard` keeps together, frozen modules too."""
    trained: list[ShardedUnit]
    """Those of them that synchronise, in the order of a round."""
    units: list[Unit]
    """Anchors and rounds of `trained`."""
    steps: int
    """Steps of the inner optimizer so far."""
    alone: int
    """Steps since the last round."""
    tokens: int
    """Tokens since the last round, as far as the script tells them."""
    due: bool
    """The next forward in training begins a round."""
    outcomes: list[Outcome]
    """Of the newest round's units."""
    under_way: PipelinedRound | None
    """The round that has begun and is not over."""
    written: set[int]
    """Units that others have given this replica, and no forward has gathered since."""
    joined: bool
    """This replica came to others that train, and has their state: load no checkpoint."""

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
        made = outer_of(config, outer)
        self.units = [Unit(one.name, one.tensors, made) for one in self.trained]
        self._sync = unit_sync_of(config, gta, (self.replicas, self.shard_group))
        self.steps, self.alone, self.tokens, self.due = 0, 0, 0, False
        self.under_way, self.joined = None, False
        self.written = set()
        self.outcomes = []
        self._turns = Turns(config, self.replicas, self.shard_group) if config.use_async else None
        self._members = members_of(self, mesh, self._sync)
        if self._members is None:
            self.share_weights()
        else:
            self._members.follow()
        vars(model)[_OWNER] = self
        self._handles = [*self._hook_modules(), *self._hook_optimizers()]

    @property
    def is_warming_up(self) -> bool:
        """Gradients are averaged over the replicas."""
        return phase(self.steps, self.config) is Phase.WARM_UP

    @property
    def rounds(self) -> int:
        """Rounds that the steps so far have ended, on all replicas alike; `due`: the last runs yet.

        A-EDiT's replicas make unlike numbers of steps. So they save where `due` is true, after
        this number of rounds.
        """
        if self._turns is not None:
            return self._turns.turn.round
        lone = max(0, self.steps - self.config.local_sgd_warmup_steps)
        return lone // self.config.local_sgd_sync_interval

    def finish(self, entered: Callable[[], None] | None = None) -> None:
        """End the training of this replica, which has no more data; its weights are the anchors.

        With A-EDiT it joins the others' rounds, without a weight, until no replica has data. With
        EDiT all replicas call it after the same step.

        Args:
            entered: Called where a round has been entered, `due` is true and the others may save:
                a checkpoint needs all ranks. Does what the script's loop does there.

        Raises:
            SyncError: a rank is gone.
        """
        if self._turns is None:
            self.sync()
            return
        self._complete()
        if not self.units or not self.units[0].has_anchors:
            return
        entry = Entry.ROUND
        while entry is not Entry.LAST:
            if self.due:
                self._begin()
                self._complete()
            entry = self._turns.exhausted()
            self.due = True
            if entered is not None:
                entered()
        self._begin()
        self._complete()

    def sync(self) -> None:
        """Synchronise now, such as before an export of the weights; all ranks call it.

        In the warm-up replicas are equal, and it does nothing.

        Raises:
            SyncError: a rank is gone.
        """
        if self.under_way is None and (self.alone or self.due):
            self._begin()
        self._complete()

    def shards(self) -> Shards:
        """Return the whole state for a `Checkpointer`; if members change, of this replica alone."""
        number, count = 0, 1
        if self._members is None or not self._members.changes:
            number, count = self.replicas.rank, self.replicas.size
        return shards_of(self, self.model, self.optimizers, (number, count))

    def clock(self) -> dict[str, Any]:
        """Return this replica's counters, for a checkpoint."""
        return {
            "steps": self.steps,
            "alone": self.alone,
            "tokens": self.tokens,
            "due": self.due,
            "rounds": self.rounds,
        }

    def set_clock(self, clock: Mapping[str, Any]) -> None:
        """Go on from counters of a checkpoint; a round that was under way is not."""
        self.steps, self.alone, self.due = clock["steps"], clock["alone"], clock["due"]
        self.tokens = clock["tokens"]
        self.under_way = None
        if self._turns is not None:
            self._turns.restart(self.alone, clock["rounds"])

    def regroup(self, sync_ranks: dist.ProcessGroup) -> None:
        """Go on with other replicas, after one was lost or has come; all members call it.

        For a script that makes its groups; with `Members` nobody calls it. After a `SyncError` in a
        forward call `model.reset_iter_state()`, which drops that forward, then this, and repeat the
        step. All members must have each unit at one round. Make a new `Checkpointer`.

        Args:
            sync_ranks: The ranks that hold this rank's shards, one of each replica that is there.
        """
        self.replicas = Group(sync_ranks, timeout=self.replicas.timeout)
        self._sync.regroup(self.units, self.replicas, self.shard_group)
        if self._turns is not None:
            self._turns.replicas = self.replicas
        if self.under_way is not None:
            self.under_way.drop_flight()

    def carry(self, name: str, one: Carried) -> None:
        """Give replicas that come later a scheduler's state, the place in the data, or the like.

        On a replica that has come later it takes that state at once. Fixed replicas have no need.

        Args:
            name: The same on all replicas.
            one: Has `state_dict`, of numbers, text, lists and dicts, and `load_state_dict`.

        Raises:
            LocalSGDError: the state has what JSON has not.
        """
        if self._members is not None:
            self._members.carry(name, one)

    def processed(self, tokens: int) -> None:
        """Count tokens of this replica, where `step_weight_by="tokens"` weighs by them."""
        self.tokens += tokens

    def skipped(self) -> None:
        """Count a step that a `GradScaler` has left out; the replicas count alike."""
        self._after_step()

    def detach(self) -> None:
        """Remove the hooks; every replica goes on alone."""
        vars(self.model).pop(_OWNER, None)
        for handle in self._handles:
            handle.remove()
        for unit in self.modules:
            for module in unit.modules:
                if hasattr(module, "set_all_reduce_hook"):  # FSDP1 has none
                    module.set_all_reduce_hook(_nothing)

    def _groups_of(
        self, model: nn.Module, mesh: DeviceMesh | Members | None, timeout: float
    ) -> tuple[Group, Group]:
        return groups_of(mesh, self.config, timeout)

    def _units_of(self, model: nn.Module) -> list[ShardedUnit]:
        return units_of(model, self.own_ranks)

    def _hook_modules(self) -> list[Any]:
        handles, numbers = [], {id(unit): number for number, unit in enumerate(self.trained)}
        for unit in self.modules:
            for module in unit.modules:
                before = BeforeForward(self.before_forward, numbers.get(id(unit)))
                handles.append(module.register_forward_pre_hook(before, prepend=True))
                self._hook_gradients(unit.name, module)
        return handles

    def _hook_gradients(self, name: str, module: Any) -> None:
        try:
            module.set_all_reduce_hook(self._average)
        except ValueError as error:  # several meshes in one unit
            raise LocalSGDError(
                f"unit {name} has parameters on several meshes, where FSDP2 takes no all-reduce "
                "hook: shard them all over the mesh's second dimension"
            ) from error

    def _hook_optimizers(self) -> list[Any]:
        before = [one.register_step_pre_hook(self._before_step) for one in self.optimizers]
        return [*before, self.optimizers[-1].register_step_post_hook(self._after_step)]

    def _average(self, gradient: torch.Tensor) -> None:
        """Average the gradients of a unit over the replicas, in the warm-up alone."""
        import torch.distributed as dist

        if not self.is_warming_up or self.replicas.size == 1:
            return
        if self._members is not None:
            average(gradient, self)
            return
        dist.all_reduce(gradient, group=self.replicas.ranks)
        gradient.div_(self.replicas.size)

    def before_forward(self, number: int | None) -> None:
        """Write a unit's weights if a round is due; number: None for a frozen one."""
        import torch

        if self.due and torch.is_grad_enabled() and self.model.training:
            self._begin()
        if number is None or (self.under_way is None and number not in self.written):
            return
        unit = self.trained[number]
        is_new = self.under_way is not None and number >= self.under_way.finished
        self._reach(number)
        is_new |= number in self.written
        self.written.discard(number)
        if is_new:
            unit.gather_in_order(root=unit is self.modules[0])

    def _begin(self) -> None:
        """Begin a round; no unit is touched yet, but by a change of members."""
        refuse_new_parameters(self.trained, self.optimizers)
        if self._members is not None:
            self._members.follow()
            if self.under_way is not None:
                return
        self.due = False
        self._open()

    def _open(self) -> None:
        self.under_way = PipelinedRound(
            self._sync,
            self.units,
            steps=float(self.tokens if self.config.step_weight_by == "tokens" else self.alone),
            joins=True,
            before_write=lambda number: self.trained[number].drop_gathered(),
        )

    def _complete(self) -> None:
        self._reach(len(self.units) - 1)

    def _reach(self, number: int) -> None:
        """Finish a round's units up to this one, with whoever is there."""
        while self.under_way is not None and not self._attempt(self.under_way.reach, number):
            pass  # the members have changed, and the round with them
        self._settle()

    def go_on_from(self, number: int) -> None:
        """Go on with the round that others have, from this unit; those before are finished."""
        if self.under_way is None:
            self.due = False
            self._open()
        assert self.under_way is not None  # noqa: S101 - opened above
        self.under_way.go_on_from(number)

    def drop_round(self) -> None:
        """Take the round that is under way for done: others gave this replica its end."""
        if self.under_way is not None:
            self.under_way.go_on_from(len(self.units))
            self._settle()

    def _settle(self) -> None:
        """End a round whose last unit is finished."""
        under_way = self.under_way
        if under_way is None or not under_way.is_over:
            return
        self.under_way, self.outcomes = None, under_way.outcomes
        self.alone, self.tokens = 0, 0
        if self.replicas.rank == 0 and self.shard_group.rank == 0:
            log_outcomes(under_way.outcomes)

    def _before_step(self, *_: Any) -> None:
        """Finish what the forward did not reach; take the anchors before the first lone step."""
        self._complete()
        if not self.is_warming_up and self.units and not self.units[0].has_anchors:
            self.take_anchors()

    def take_anchors(self) -> None:
        """Take the weights for anchors, where all replicas are equal; a collective.

        Raises:
            AnchorsDifferError: they are not; names units and replicas.
        """
        refuse_new_parameters(self.trained, self.optimizers)
        if self._members is not None:
            self._members.follow()
        voters = self._sync.voters
        while not self.units[0].has_anchors:
            self._attempt(all_or_none, voters, self._take_anchors)

    def _attempt(self, call: Callable[..., object], *given: object) -> bool:
        """Return True after a call, and False where it failed and the members have changed."""
        if self._members is not None:
            return self._members.attempt(call, *given)
        call(*given)
        return True

    def _take_anchors(self) -> None:
        if self.steps:  # after a warm-up on unlike machines the last bits may differ
            self.share_weights()
        for unit in self.units:
            unit.take_anchors()
        check_equal(self.units, self.replicas)

    def _after_step(self, *_: Any) -> None:
        warming_up = self.is_warming_up
        self.steps += 1
        if warming_up:
            if self._turns is not None:
                self._turns.restart()  # the time begins with the first lone step
            return
        self.alone += 1
        if self._turns is not None:
            self.due = self._turns.stepped() is not Entry.SKIP
        else:
            self.due = is_due(self.steps, self.config)
        self.due |= self._members is not None and self._members.after_step()

    def share_weights(self, source: int = 0) -> None:
        """Give all replicas the weights of one, as DDP does; raises SyncError."""
        import torch
        from torch.distributed.tensor import DTensor

        if self.replicas.size == 1:
            return
        with torch.no_grad():
            for unit in self.modules:
                unit.drop_gathered()
            for one in self.model.parameters():
                local = one._local_tensor if isinstance(one, DTensor) else one  # noqa: SLF001
                if local.numel():
                    self.replicas.begin_broadcast(local.detach(), source).wait()


def _refuse_second(model: nn.Module) -> None:
    if _OWNER in vars(model):
        raise LocalSGDError(
            f"model: this {type(model).__name__} has a LocalSGD: call detach() on it before "
            "another is made, since both would synchronise"
        )


def _nothing(_: Any) -> None:
    """Leave a gradient as it is."""
