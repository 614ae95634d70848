"""Trainings in each way: DDP, torch's averager, torchft's, EDiT under DDP.

Belongs here: the lines that a script has, as docs/local-sgd.md shows them. Does not belong here:
what is measured (`rank`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

from bench.local_sgd.plan import NESTEROV
from bench.local_sgd.torchft_ways import Torchft
from holdfast.local_sgd import OuterOptimPeriodicModelAverager, StatefulPostLocalSGDOptimizer
from holdfast.local_sgd.config import LocalSGDConfig, OuterOptimizerConfig


@dataclass(slots=True)
class WayTraining:
    """A model and what steps it."""

    model: nn.Module
    optimizer: Any
    inner: torch.optim.Optimizer
    """The script's own, whose learning rate counts."""
    close: Callable[[], None] = lambda: None
    """Ends what the way has started."""


def training_of(case: Mapping[str, Any], model: nn.Module, lr: float) -> WayTraining:
    """Return a case's training; all ranks call it."""
    made = _WAYS[case["kind"]]
    return made(case, model, lr)


def _config(case: Mapping[str, Any]) -> LocalSGDConfig:
    return LocalSGDConfig(local_sgd_sync_interval=case["interval"], **case["config"])


def _outer(case: Mapping[str, Any]) -> OuterOptimizerConfig | None:
    return OuterOptimizerConfig(torch.optim.SGD, NESTEROV) if case["outer"] else None


def _ddp(case: Mapping[str, Any], model: nn.Module, lr: float) -> WayTraining:
    del case
    wrapped = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    inner = torch.optim.AdamW(wrapped.parameters(), lr=lr)
    return WayTraining(wrapped, inner, inner)


def _local(case: Mapping[str, Any], model: nn.Module, lr: float) -> WayTraining:
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


def _torch(case: Mapping[str, Any], model: nn.Module, lr: float) -> WayTraining:
    found = _local(case, model, lr)
    averager = PeriodicModelAverager(
        period=case["interval"], warmup_steps=case["config"].get("local_sgd_warmup_steps", 0)
    )
    found.optimizer = PostLocalSGDOptimizer(optim=found.inner, averager=averager)
    return found


def _torchft(case: Mapping[str, Any], model: nn.Module, lr: float) -> WayTraining:
    found = _local(case, model, lr)
    optimizer = Torchft(case, model, found.inner)
    return WayTraining(found.model, optimizer, found.inner, optimizer.close)


def _edit(case: Mapping[str, Any], model: nn.Module, lr: float) -> WayTraining:
    found = _local(case, model, lr)
    averager = OuterOptimPeriodicModelAverager(
        local_sgd_config=_config(case), outer_optim_config=_outer(case)
    )
    found.optimizer = StatefulPostLocalSGDOptimizer(optim=found.inner, averager=averager)
    return found


_WAYS: Mapping[str, Callable[[Mapping[str, Any], nn.Module, float], WayTraining]] = {
    "ddp": _ddp,
    "torch": _torch,
    "torchft": _torchft,
    "edit": _edit,
}
