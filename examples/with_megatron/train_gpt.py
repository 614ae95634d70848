"""Trains a small GPT with megatron-core, and goes on in whatever layout its world allows.

    torchrun --nproc-per-node=4 examples/with_megatron/train_gpt.py --tensor=2

Holdfast's part is the `Checkpointer` with `MegatronShards`, `load`, and `step`. The rest is a
training with megatron-core's distributed optimizer. The samples are random numbers that follow from
the step, so that every world sees the same ones.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig

import holdfast
from holdfast.integrations.megatron import MegatronShards

BATCH: Final = 4
"""Samples of a step in all ranks together."""
LENGTH: Final = 16
VOCABULARY: Final = 64


def flags() -> argparse.Namespace:
    """Return the command line's flags."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tensor", type=int, default=1, help="tensor parallel ranks, at most")
    parser.add_argument("--pipeline", type=int, default=1, help="pipeline stages, at most")
    parser.add_argument("--checkpoint-dir", required=True)
    parser.add_argument("--save-every", type=int, default=10, help="steps between durable saves")
    parser.add_argument("--loss-log", type=Path, help="file for a JSON line per step")
    return parser.parse_args()


def build(given: argparse.Namespace) -> tuple[Any, Any]:
    """Return model and optimizer in a layout that the world's size allows."""
    world = dist.get_world_size()
    tensor = min(given.tensor, world)
    pipeline = min(given.pipeline, world // tensor)
    parallel_state.initialize_model_parallel(tensor, pipeline)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=4,
        hidden_size=32,
        num_attention_heads=4,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        pipeline_dtype=torch.float32,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    ).cuda()
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True)
    model = DistributedDataParallel(config, ddp, model)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-3, use_distributed_optimizer=True), [model]
    )
    return model, optimizer


def samples(step: int) -> Iterator[torch.Tensor]:
    """Yield this rank's samples of a step, one at a time."""
    numbers = torch.Generator().manual_seed(step)
    batch = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=numbers)
    share = BATCH // parallel_state.get_data_parallel_world_size()
    begin = share * parallel_state.get_data_parallel_rank()
    yield from batch[begin : begin + share].cuda().split(1)


def forward(data: Iterator[torch.Tensor], model: Any) -> Any:
    """Return the output of a sample, and the function that makes the loss of it."""
    tokens = next(data)
    mask = torch.ones((1, 1, LENGTH, LENGTH), dtype=torch.bool, device=tokens.device).triu(1)
    places = torch.arange(LENGTH, device=tokens.device).unsqueeze(0)
    output = model(tokens[:, :-1], places, mask, labels=tokens[:, 1:])

    def loss(found: torch.Tensor) -> Any:
        return found.float().mean(), {"loss": found.detach().double().mean()}

    return output, loss


def train_step(model: Any, optimizer: Any, step: int) -> float:
    """Train one step; return its mean loss, the same on all ranks."""
    model.zero_grad_buffer()
    optimizer.zero_grad()
    share = BATCH // parallel_state.get_data_parallel_world_size()
    told = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=samples(step),
        model=model,
        num_microbatches=share,
        seq_length=LENGTH,
        micro_batch_size=1,
        forward_only=False,
    )
    finalize_model_grads([model])
    optimizer.step()
    mine = sum(float(one["loss"]) for one in told)
    last = parallel_state.is_pipeline_last_stage() and not (
        parallel_state.get_tensor_model_parallel_rank()
    )
    total = torch.tensor([mine if last else 0.0], dtype=torch.float64).cuda()
    dist.all_reduce(total)
    return float(total) / BATCH


def main() -> None:
    """Train, saving and restoring by the way."""
    given = flags()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model, optimizer = build(given)
    flash = holdfast.Checkpointer(
        given.checkpoint_dir,
        shards=MegatronShards(model, optimizer),
        schedule=holdfast.Schedule(memory_every=1, storage_every=given.save_every),
    )
    for step in range(flash.load(), given.steps):
        loss = train_step(model, optimizer, step)
        if dist.get_rank() == 0 and given.loss_log:
            layout = {
                "tensor": parallel_state.get_tensor_model_parallel_world_size(),
                "world": dist.get_world_size(),
            }
            with given.loss_log.open("a") as log:
                log.write(json.dumps({"step": step + 1, "loss": loss, **layout}) + "\n")
        if flash.step(step + 1, samples=BATCH, loss=loss) is holdfast.SAVE_AND_STOP:
            break
    flash.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
