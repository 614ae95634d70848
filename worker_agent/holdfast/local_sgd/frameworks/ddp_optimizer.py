"""The optimizer around a script's own under DDP, its checkpoint, and all of it from one call.

Belongs here: what a DDP script wraps. Does not belong here: the averager that it wraps it with
(`ddp`), names and boxes of a checkpoint, which are the same under FSDP2 (`shards`).

```python
config, outer = edit_settings(local_sgd_sync_interval=64)
optimizer = local_sgd_under_ddp(model, optimizer, config, outer)
...
optimizer.averager.finish()
```
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from holdfast.flash.trainer.leaves import Leaves
from holdfast.flash.trainer.shards import ReplicaShards, Shards, Together
from holdfast.flash.trainer.state_dict import parameters
from holdfast.flash.trainer.torch_shards import TorchShards
from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.frameworks.ddp import OuterOptimPeriodicModelAverager
from holdfast.local_sgd.members.members import Members
from holdfast.local_sgd.shards import LocalSGDShards
from holdfast.local_sgd.sync.reducers import Lost
from holdfast.local_sgd.sync.units import Unit

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

_OURS: Final = ("step", "local_sgd")
"""Keys that this adds to the inner optimizer's state."""


class StatefulPostLocalSGDOptimizer:
    """An optimizer whose steps are counted by an averager; also a `torch.optim.Optimizer`.

    Attributes that are not here are those of the script's optimizer, its hooks among them.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Add torch's class as a base: schedulers ask for it, and torch is imported late."""
        own: Any = cls
        made: Self = object.__new__(_with_torch(own))
        return made

    def __init__(
        self, optim: torch.optim.Optimizer, averager: OuterOptimPeriodicModelAverager
    ) -> None:
        """Take the script's optimizer and the averager."""
        self.optim, self.averager = optim, averager
        averager.start(optim.param_groups, optim)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the script's optimizer."""
        if name in {"optim", "averager"}:  # not yet set: a copy in the making
            raise AttributeError(name)
        return getattr(self.optim, name)

    @property
    def state(self) -> Any:
        """The inner optimizer's state."""
        return self.optim.state

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The inner optimizer's groups, also after it has loaded a state."""
        return self.optim.param_groups

    def __repr__(self) -> str:
        return repr(self.optim)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make an inner step, and the round that it ends, if it does."""
        self.averager.before_step(self.param_groups)
        loss = self.optim.step() if closure is None else self.optim.step(closure)
        self.averager.average_parameters(self.param_groups)
        return loss

    def shards(self, model: nn.Module) -> Shards:
        """Return the whole training state for a `Checkpointer`: `shards=optim.shards(model)`.

        It has every replica's weights and inner state, and loads in any number of replicas, also
        under FSDP2. With members that come and go it is this replica's, whole by itself.

        Args:
            model: The DistributedDataParallel, or what is in it.

        Raises:
            LocalSGDError: the optimizer has a parameter that the model has not.
        """
        averager = self.averager
        if not averager.units:
            averager.make_units(self.param_groups)
        whole = TorchShards({"": model}, {"": self.optim})
        replica = ReplicaShards(whole, averager.place[0], shard=averager.own.rank)
        return Together(replica, _DDPShards(averager, _named(model, self.optim), replica))

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's own
        """Reset the gradients."""
        self.optim.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; their anchors are taken before the next local step."""
        self.optim.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the inner state, torch's "step", and "local_sgd": the averager's."""
        return {
            **self.optim.state_dict(),
            "step": self.averager.step,
            "local_sgd": self.averager.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state; one without "local_sgd" begins with the weights that are there then.

        A state of torch's `PostLocalSGDOptimizer`, or of a plain optimizer, has none: its anchors
        are taken before the next step, where all replicas must be equal.
        """
        inner = {name: one for name, one in state_dict.items() if name not in _OURS}
        self.optim.load_state_dict(inner)
        fallback = {"step": state_dict.get("step", 0), "replica": -1, "units": []}
        self.averager.load_state_dict(state_dict.get("local_sgd", fallback), self.param_groups)


@functools.cache
def _with_torch(cls: Any) -> Any:
    import torch

    if issubclass(cls, torch.optim.Optimizer):
        return cls
    return type(cls.__name__, (cls, torch.optim.Optimizer), {"__module__": cls.__module__})


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter of the optimizer under its name in the model."""

    name: str
    parameter: Any

    @property
    def local(self) -> torch.Tensor:
        """The parameter's values."""
        values: torch.Tensor = self.parameter.detach()
        return values


@dataclass(frozen=True, slots=True)
class _ParameterUnit:
    """The one parameter of a unit."""

    trained: tuple[_Parameter, ...]


class _DDPShards(LocalSGDShards):
    """State of an averager between rounds; the first rank of a replica stores it."""

    def _collect_anchors(self, leaves: Leaves, unit: Unit, module: Any, *, stored: bool) -> None:
        super()._collect_anchors(leaves, unit, module, stored=stored and self._is_first_rank)

    def _collect_lost(self, leaves: Leaves, lost: Lost, module: Any) -> None:
        if self._is_first_rank:
            super()._collect_lost(leaves, lost, module)

    @property
    def _is_first_rank(self) -> bool:
        return self._local.shard_group.rank == 0


def _named(model: Any, inner: torch.optim.Optimizer) -> Sequence[_ParameterUnit]:
    names = {id(holder[key]): name for name, holder, key in reversed(list(parameters(model)))}
    flat = [one for group in inner.param_groups for one in group["params"]]
    if foreign := [tuple(one.shape) for one in flat if id(one) not in names]:
        raise LocalSGDError(
            f"shards(model): {len(foreign)} parameters of the optimizer are not in the model, such "
            f"as one of shape {foreign[0]}: pass the model whose parameters the optimizer has"
        )
    return [_ParameterUnit((_Parameter(names[id(one)], one),)) for one in flat]


def local_sgd_under_ddp(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    config: LocalSGDConfig,
    outer: OuterOptimizerConfig | None = None,
    gta: GTAConfig | None = None,
    *,
    members: Members | None = None,
) -> StatefulPostLocalSGDOptimizer:
    """Register the hook, and return the optimizer to use; its averager is `averager`.

    The hook averages gradients over all ranks in the warm-up, and over those of one replica
    afterwards: with one rank each over nobody. It counts steps of the optimizer. So it needs no
    `no_sync` under gradient accumulation, and goes on after a load.

    Args:
        model: Before its first forward, without another hook.
        optimizer: The inner optimizer.
        config: When replicas synchronise, and how.
        outer: The outer optimizer; None: none.
        gta: How deltas become one; None: their mean.
        members: Replicas that come and go, each with a DDP of its own, which reduces as ever; or
            fixed ones, which the model's process group has all ranks of.

    Raises:
        LocalSGDConfigError: settings contradict each other, or ask for what DDP has not.
    """
    whole = model.process_group
    averager = OuterOptimPeriodicModelAverager(members or whole, config, gta, outer)
    if averager.are_fixed:
        # torch wants annotations that are classes, and here they are text: a lambda has none.
        model.register_comm_hook(averager, lambda own, bucket: _reduce(bucket, own, whole))
    made = StatefulPostLocalSGDOptimizer(optimizer, averager)
    averager.carry_buffers(model)
    return made


def _reduce(
    bucket: Any, averager: OuterOptimPeriodicModelAverager, whole: dist.ProcessGroup
) -> torch.futures.Future[torch.Tensor]:
    """Return a bucket's gradients: the mean of all ranks in the warm-up, then of this replica's."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    in_warm_up = averager.is_warming_up
    if in_warm_up or averager.own.size > 1:
        ranks = whole if in_warm_up else averager.own.ranks
        reduced: torch.futures.Future[torch.Tensor] = allreduce_hook(ranks, bucket)
        return reduced
    own: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    own.set_result(bucket.buffer())
    return own
