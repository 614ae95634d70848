"""Trainings in each way: DDP, torch's averager, EDiT under DDP, EDiT and A-EDiT under FSDP2.

Belongs here: the lines that a script has, as docs/local-sgd.md shows them. Does not belong here:
what is measured (`rank`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer

from bench.local_sgd.plan import NESTEROV
from holdfast.local_sgd.config import LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.ddp import OuterOptimPeriodicModelAverager, StatefulPostLocalSGDOptimizer
from holdfast.local_sgd.fsdp2 import LocalSGD


@dataclass(slots=True)
class Training:
    """A model and what steps it."""

    model: nn.Module
    optimizer: Any
    inner: torch.optim.Optimizer
    """The script's own, whose learning rate counts."""
    settle: Callable[[], None] = lambda: None
    """Ends the training of this replica, as all others do."""


def training_of(case: Mapping[str, Any], model: nn.Module, lr: float) -> Training:
    """Return a case's training; all ranks call it."""
    made = _WAYS[case["kind"]]
    return made(case, model, lr)


def _config(case: Mapping[str, Any]) -> LocalSGDConfig:
    given = dict(case["config"])
    if not given.get("use_async"):
        given["local_sgd_sync_interval"] = case["interval"]
    return LocalSGDConfig(**given)


def _outer(case: Mapping[str, Any]) -> OuterOptimizerConfig | None:
    return OuterOptimizerConfig(torch.optim.SGD, NESTEROV) if case["outer"] else None


def _ddp(case: Mapping[str, Any], model: nn.Module, lr: float) -> Training:
    del case
    wrapped = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    inner = torch.optim.AdamW(wrapped.parameters(), lr=lr)
    return Training(wrapped, inner, inner)


def _local(case: Mapping[str, Any], model: nn.Module, lr: float) -> Training:
    """Return a DDP whose gradients stay on the replica after the warm-up."""
    found = _ddp(case, model, lr)
    state = PostLocalSGDState(
        process_group=None,
        subgroup=None,
        start_localSGD_iter=case["config"].get("local_sgd_warmup_steps", 0),
        post_local_gradient_allreduce=False,
    )
    found.model.register_comm_hook(state, post_localSGD_hook)  # type: ignore[operator]
    return found


def _torch(case: Mapping[str, Any], model: nn.Module, lr: float) -> Training:
    found = _local(case, model, lr)
    averager = PeriodicModelAverager(
        period=case["interval"], warmup_steps=case["config"].get("local_sgd_warmup_steps", 0)
    )
    found.optimizer = PostLocalSGDOptimizer(optim=found.inner, averager=averager)
    return found


def _edit(case: Mapping[str, Any], model: nn.Module, lr: float) -> Training:
    found = _local(case, model, lr)
    averager = OuterOptimPeriodicModelAverager(
        local_sgd_config=_config(case), outer_optim_config=_outer(case)
    )
    found.optimizer = StatefulPostLocalSGDOptimizer(optim=found.inner, averager=averager)
    return found


def _fsdp2(case: Mapping[str, Any], model: nn.Module, lr: float) -> Training:
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard")
    )
    fully_shard(model, mesh=mesh["shard"])
    inner = torch.optim.AdamW(model.parameters(), lr=lr)
    local = LocalSGD(model, inner, mesh, _config(case), _outer(case))
    return Training(model, inner, inner, settle=local.finish)


_WAYS: Mapping[str, Callable[[Mapping[str, Any], nn.Module, float], Training]] = {
    "ddp": _ddp,
    "torch": _torch,
    "edit": _edit,
    "fsdp2": _fsdp2,
}
