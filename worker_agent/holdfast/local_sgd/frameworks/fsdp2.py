"""EDiT for a model under FSDP2's `fully_shard`: five lines in a training script.

```python
mesh = init_device_mesh("cuda", (replicas, shards), mesh_dim_names=("replicate", "shard"))
for block in model.blocks:
    fully_shard(block, mesh=mesh["shard"])
fully_shard(model, mesh=mesh["shard"])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
local = LocalSGD(model, optimizer, mesh, LocalSGDConfig(local_sgd_sync_interval=16), outer)
```

Belongs here: where FSDP2 calls, and where it keeps its weights. Does not belong here: the course of
a round (`driver`), which parameters are a unit (`fsdp2_units`), the state in a checkpoint
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

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.trainer.shards import Shards
from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.driver.framework import Framework
from holdfast.local_sgd.driver.replicas import FixedMembers
from holdfast.local_sgd.driver.spanning import spanning
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.frameworks.fsdp2_units import (
    ShardedUnit,
    hook_modules,
    refuse_new_parameters,
    share_inner_state,
    unhook_gradients,
    units_of,
)
from holdfast.local_sgd.shards import shards_of
from holdfast.local_sgd.sync.configured import outer_of
from holdfast.local_sgd.sync.group import TIMEOUT, Group
from holdfast.local_sgd.sync.inner_state import TorchInnerState
from holdfast.local_sgd.sync.units import Unit

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from holdfast.local_sgd.members.members import Members

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


class LocalSGD(Framework):
    """Replicas of one model under FSDP2."""

    in_forward = True
    switches = counts_tokens = True

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
                Members in its place may come and go (`mesh_of` for `fully_shard`).
            config: When replicas synchronise, and how.
            outer: The outer optimizer; None: none.
            gta: How deltas become one; None: their mean.
            timeout: Seconds until a collective of a sync has failed; members have their own.

        Raises:
            LocalSGDConfigError: settings contradict each other.
            MembersError: no membership came.
            LocalSGDError: the model or the mesh does not fit; the message says what to change.
        """
        self.check_settings(config, outer, gta)
        _refuse_second(model)
        self.model = model
        self.optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
        who = self._members_of(mesh, timeout)
        self.modules = self._units_of(who.own)
        self.trained = [one for one in self.modules if one.trained]
        made = outer_of(config, outer)
        self.units = [Unit(one.name, one.tensors, made) for one in self.trained]
        self.inner = TorchInnerState(self._slots, lambda: len(self.units), self.optimizers)
        self.inner.add_buffers(model)
        self._written = set[int]()
        """Units that others have given this replica, and no forward has gathered since."""
        self._is_step = self._in_eval = False
        self.drive(config, gta, who, first=self.units[0].name if self.units else "")
        self.driver.start()
        if self.are_fixed:  # fixed members are known by now
            by_time = config.use_async
            self.driver.spanning = spanning(self.replicas, model, by_time=by_time, own=True)
        vars(model)[_OWNER] = self
        self._handles = self._hook()

    @property
    def together(self) -> bool:
        """All replicas are at the end of one round here: a checkpoint has all of them."""
        return self.due

    def shards(self) -> Shards:
        """Return the whole training state for a `Checkpointer`: `shards=local.shards()`.

        With members that come and go it is this replica's, whole by itself, whoever is there.
        """
        return shards_of(self, self.trained, self.model, self.optimizers)

    def processed(self, tokens: int) -> None:
        """Count tokens of this replica, where `step_weight_by="tokens"` weighs by them."""
        self.driver.tokens += tokens

    def skipped(self) -> None:
        """Count a step that a `GradScaler` has left out; the replicas count alike."""
        self._is_step = True
        self._after_step()

    def detach(self) -> None:
        """Remove the hooks; every replica goes on alone."""
        vars(self.model).pop(_OWNER, None)
        for handle in self._handles:
            handle.remove()
        self.driver.spanning.leave()
        unhook_gradients(self.modules)

    def before_forward(self, number: int | None, *_: Any) -> None:
        """Write a unit's weights if a round is due; number: None for a frozen one."""
        import torch

        driver = self.driver
        if (self.model.training or self._in_eval) and torch.is_grad_enabled():
            if driver.due:
                driver.begin()
            elif driver.who.changes and driver.wants_anchors:
                driver.take_anchors()  # who joins here is told what others have before this step
        if number is None or not (driver.round.is_open or number in self._written):
            return
        unit = self.trained[number]
        is_new = driver.round.is_open and number >= driver.round.finished
        driver.reach(number)
        is_new |= number in self._written
        self._written.discard(number)
        if is_new:
            unit.gather_in_order(root=unit is self.modules[0])

    def before_write(self, number: int) -> None:
        """Have the next gather read what is about to be written."""
        self.trained[number].drop_gathered()

    def before_change(self, number: int) -> None:
        """The same; the forward that is under way may have gathered the unit."""
        self.before_write(number)
        self._written.add(number)

    def check(self) -> None:
        """Refuse a parameter that is trained since: no replica would learn of its changes."""
        refuse_new_parameters(self.trained, self.optimizers)

    def inner_groups(self) -> list[Any]:
        """Groups of all inner optimizers."""
        return [group for one in self.optimizers for group in one.param_groups]

    def share_weights(self, source: int) -> None:
        """Give all replicas the weights of one, frozen ones too, as DDP does; raises SyncError."""
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

    def share_inner_state(self) -> None:
        """Give all replicas the first one's inner state: equal gradients must move all alike."""
        share_inner_state(self.optimizers, self.replicas)

    def _members_of(self, mesh: DeviceMesh | Members | None, timeout: float) -> FixedMembers:
        """Return the replicas.

        Raises:
            LocalSGDError: there is no mesh, or one of another number of dimensions.
        """
        from torch.distributed.device_mesh import DeviceMesh

        if mesh is None:
            raise LocalSGDError("mesh=None: give a DeviceMesh, or members")
        if not isinstance(mesh, DeviceMesh):
            from holdfast.local_sgd.driver.changing import ChangingMembers

            return ChangingMembers(mesh)
        if mesh.ndim != 2:
            raise LocalSGDError(
                f"mesh: it has {mesh.ndim} dimensions, expected two: replicas, and shards of a "
                'replica, as init_device_mesh(device, (N, M), mesh_dim_names=("replicate", '
                '"shard")) makes it; or give members, such as members_of_environment()'
            )
        group = Group.like(mesh.get_group(0), timeout=timeout)
        return FixedMembers(group, Group(mesh.get_group(1), timeout=timeout), averages=True)

    def _units_of(self, own: Group) -> list[ShardedUnit]:
        return units_of(self.model, own.ranks)

    def _slots(self, number: int) -> list[Any]:
        return [one.parameter for one in self.trained[number].trained]

    def _hook(self) -> list[Any]:
        handles = hook_modules(self.modules, self.before_forward, self._average)
        handles += [one.register_step_pre_hook(self._before_step) for one in self.optimizers]
        handles.append(self.optimizers[-1].register_step_post_hook(self._after_step))
        return handles

    def _average(self, gradient: torch.Tensor) -> None:
        """Average the gradients of a unit over the replicas, in the warm-up alone."""
        self._is_step = True
        if self.is_warming_up and self.replicas.size > 1:
            with self.driver.when.reducing():
                self.driver.who.average(gradient)

    def _before_step(self, *_: Any) -> None:
        """Finish what the forward did not reach.

        A whole round, where the forward was in eval mode for the first time: nothing told it from
        an evaluation. A step without a backward before it, of an optimizer that has not stepped, is
        one of torch.distributed.checkpoint's helpers, which want the state of an optimizer.
        """
        self._is_step |= bool(self.optimizers[-1].state)
        if self._is_step:
            self._in_eval = not self.model.training
            self.driver.before_step()
        else:
            self.driver.complete()
            self.driver.take_wanted_anchors()

    def _after_step(self, *_: Any) -> None:
        if self._is_step:
            self._is_step = False
            self.driver.after_step()


def _refuse_second(model: nn.Module) -> None:
    if _OWNER in vars(model):
        raise LocalSGDError(
            f"model: this {type(model).__name__} has a LocalSGD: call detach() on it before "
            "another is made, since both would synchronise"
        )
