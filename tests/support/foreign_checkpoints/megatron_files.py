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


def save(folder: str, sharding: str, truth: str = "", tensor: int = 1, **how: Any) -> None:
    """Train three steps in bf16 and save; also masters and moments of the optimizer itself.

    how: see `_trained`.
    """
    import torch
    import torch.distributed as dist
    from megatron.core import dist_checkpointing

    chunk, optimizer = _trained(tensor, **how)
    metadata = {"distrib_optim_sharding_type": sharding, "chained_optim_avoid_prefix": True}
    state: dict[str, Any] = {
        "iteration": 3,
        "model": chunk.module.sharded_state_dict(metadata=metadata),
        "optimizer": optimizer.sharded_state_dict(
            chunk.module.sharded_state_dict(metadata=metadata), metadata=metadata
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


def _trained(
    tensor: int, *, buckets: bool = False, gated: bool = False, lr: float = 1e-2
) -> tuple[Any, Any]:
    """Return a model and its optimizer after three steps.

    buckets: overlap the reduction of gradients, in buckets with padding between them.
    gated: a rank's first matrix of an MLP has two halves, which are saved as two boxes.
    """
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer import TransformerConfig

    half = torch.bfloat16
    parallel_state.initialize_model_parallel(tensor, 1)
    model_parallel_cuda_manual_seed(1)
    torch.manual_seed(3)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=24,
        num_attention_heads=4,
        bf16=True,
        params_dtype=half,
        pipeline_dtype=half,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        gradient_accumulation_fusion=False,
        gated_linear_unit=gated,
    )
    model = GPTModel(config, get_gpt_layer_local_spec(), 66, 16).bfloat16()
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=True,
        overlap_grad_reduce=buckets,
        bucket_size=1500 if buckets else None,
    )
    chunk = DistributedDataParallel(config, ddp, model)
    settings = OptimizerConfig(
        optimizer="adam",
        lr=lr,
        bf16=True,
        params_dtype=half,
        use_distributed_optimizer=True,
    )
    optimizer = get_megatron_optimizer(settings, [chunk])
    where, mask = torch.arange(16)[None].repeat(2, 1), torch.ones(1, 1, 16, 16).triu(1) > 0
    for step in range(3):
        chunk.zero_grad_buffer()
        optimizer.zero_grad()
        torch.manual_seed(step + 100 * (dist.get_rank() // tensor))
        words = torch.randint(0, 66, (2, 16))
        chunk(words, where, mask, labels=words).float().mean().backward()
        finalize_model_grads([chunk])
        optimizer.step()
    return chunk, optimizer


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
