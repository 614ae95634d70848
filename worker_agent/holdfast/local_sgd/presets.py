"""EDiT with the paper's settings, and all that DDP needs for it from one call.

Belongs here: what a script would else put together from several parts. Does not belong here: the
parts (`config`, `ddp`).

```python
config, outer = edit_settings(local_sgd_sync_interval=64)
optimizer = local_sgd_under_ddp(model, optimizer, config, outer)
...
optimizer.averager.finish()
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.ddp import OuterOptimPeriodicModelAverager, StatefulPostLocalSGDOptimizer
from holdfast.local_sgd.members import Members
from holdfast.local_sgd.policies.schedule import Phase, phase

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

_EDIT: Final = {
    "local_sgd_sync_interval": 128,
    "local_sgd_warmup_steps": 1000,
    "pseudo_gradnorm_reduce": True,
    "skip_anomaly": True,
    "clip_pseudo_grad": 10.0,
}
_OUTER: Final = {"lr": 0.8, "momentum": 0.85, "nesterov": True}


def edit_settings(**changes: Any) -> tuple[LocalSGDConfig, OuterOptimizerConfig]:
    """Return the settings of EDiT's paper (arXiv 2412.07210, section 4).

    `LocalSGDConfig()` alone is plain averaging after each step. Here replicas weigh by their norms,
    anomalies are left out, the mean is clipped at 10, and SGD with Nesterov's momentum steps along
    it; 1000 steps of warm-up, then a round each 128.

    Args:
        changes: Fields of `LocalSGDConfig` that are to have other values.

    Raises:
        LocalSGDConfigError: a value is not valid.
    """
    import torch

    config = LocalSGDConfig(**{**_EDIT, **changes})
    return config, OuterOptimizerConfig(torch.optim.SGD, dict(_OUTER))


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
    group = members if members is not None else model.process_group
    averager = OuterOptimPeriodicModelAverager(group, config, gta, outer)
    if members is None or not members.changes:
        # torch wants annotations that are classes, and here they are text: a lambda has none.
        whole = model.process_group
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

    in_warm_up = phase(averager.step, averager.config) is Phase.WARM_UP
    if in_warm_up or averager.own.size > 1:
        ranks = whole if in_warm_up else averager.own.ranks
        reduced: torch.futures.Future[torch.Tensor] = allreduce_hook(ranks, bucket)
        return reduced
    own: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    own.set_result(bucket.buffer())
    return own
