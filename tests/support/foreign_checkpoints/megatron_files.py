"""Checkpoints that Megatron's `dist_checkpointing` writes of a tiny GPT. See `worlds`."""

from __future__ import annotations

import functools
import os
from typing import Any


def prepare() -> None:
    """Import Megatron with the CPU in CUDA's place."""
    from megatron_worlds import cpu_shim

    cpu_shim.install()
    import megatron.core.models.gpt  # noqa: F401 - forked ranks find it imported
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from torch import multiprocessing

    # Megatron spawns a process for a queue, which imports torch: three seconds, in each rank.
    forked = multiprocessing.get_context("fork")
    filesystem_async._get_write_results_queue = functools.cache(lambda: forked.Manager().Queue())


def save(
    folder: str, sharding: str, truth: str = "", lr: float = 1e-2, tensor: int = 1, **how: Any
) -> None:
    """Train three steps in bf16 and save; also masters and moments of the optimizer itself.

    how: as in `gpt.Setup`.
    """
    import torch
    import torch.distributed as dist
    from megatron.core import dist_checkpointing, parallel_state

    from megatron_worlds.gpt import Setup, backward, build, share_of

    training = build(
        Setup(tensor=tensor, precision="bf16", hidden=24, ffn=4, layers=2, **how), seed=3
    )
    parallel = parallel_state.get_data_parallel_world_size()
    for number in range(3):
        backward(training, share_of(number, parallel_state.get_data_parallel_rank(), parallel))
        for group in training.optimizer.param_groups:
            group["lr"] = lr  # without the schedule
        training.optimizer.step()
    chunk, optimizer = training.chunks[0].module, training.optimizer
    metadata = {"distrib_optim_sharding_type": sharding, "chained_optim_avoid_prefix": True}
    state: dict[str, Any] = {
        "iteration": 3,
        "model": chunk.sharded_state_dict(metadata=metadata),
        "optimizer": optimizer.sharded_state_dict(
            chunk.sharded_state_dict(metadata=metadata), metadata=metadata
        ),
        "args": _arguments(tensor),
    }
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - all ranks
    dist.barrier()
    dist_checkpointing.save(state, folder, content_metadata=metadata)
    if truth:
        torch.save(_truth(chunk, optimizer), truth)


def _arguments(tensor: int) -> Any:
    import argparse

    import torch.distributed as dist
    from megatron.core.enums import ModelType

    return argparse.Namespace(
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=1,
        world_size=dist.get_world_size(),
        model_type=ModelType.encoder_or_decoder,
    )


def _truth(chunk: Any, optimizer: Any) -> dict[str, Any]:
    """Return master and moments by the parameters' own names; for a world of one rank."""
    names = {id(one): name for name, one in chunk.module.named_parameters()}
    found = {}
    for inner in getattr(optimizer, "chained_optimizers", [optimizer]):
        for one in inner.model_param_gbuf_map:
            states = inner._get_main_param_and_optimizer_states(one)
            found[names[id(one)]] = {
                key: value.clone().view(one.shape)
                for key, value in states.items()
                if value.numel() == one.numel()
            }
    return found
