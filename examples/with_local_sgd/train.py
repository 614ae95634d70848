"""Trains a small Llama by local SGD (EDiT). Each node is a replica, whose ranks shard the model.

Local SGD's lines are the mesh, `LocalSGD`, and `local.finish()`. With `--parallel=ddp` each rank is
a replica under DDP. There they are the hook, the averager, and the optimizer around the script's.
`--way` chooses EDiT, A-EDiT, or plain DDP to compare with; `--curve` writes the losses down, which
`plot_losses.py` draws.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[1]))  # english_text

import english_text
import holdfast
from holdfast.local_sgd import (
    LocalSGD,
    OuterOptimPeriodicModelAverager,
    StatefulPostLocalSGDOptimizer,
)
from holdfast.local_sgd.config import LocalSGDConfig, OuterOptimizerConfig
from with_local_sgd.curve import Curve
from with_local_sgd.llama_model import CONTEXT, Llama, next_byte_loss

OUTER = OuterOptimizerConfig(torch.optim.SGD, {"lr": 0.7, "momentum": 0.8, "nesterov": True})


def main() -> None:
    """Join the world, train, print the loss."""
    args = arguments()
    holdfast.init()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    curve = Curve(args.curve, args.way, CONTEXT * args.batch * dist.get_world_size())
    if args.way == "ddp":
        train_plainly(args, curve)
    elif args.parallel == "fsdp2":
        train_fsdp2(args, settings(args), curve)
    else:
        train_ddp(args, settings(args), curve)
    curve.close()
    dist.barrier()
    dist.destroy_process_group()


def settings(args: argparse.Namespace) -> LocalSGDConfig:
    """Return when replicas agree, and how."""
    rounds: dict[str, Any] = {"local_sgd_sync_interval": args.interval}
    if args.way == "a-edit":
        rounds = {
            "use_async": True,
            "local_sgd_sync_time": args.seconds,
            "min_total_global_steps": 1,
            "use_step_weight": True,
        }
    return LocalSGDConfig(
        local_sgd_warmup_steps=args.warmup,
        pseudo_gradnorm_reduce=True,
        clip_pseudo_grad=10.0,
        skip_anomaly=True,
        ewma_warmup_steps=10,
        **rounds,
    )


def train_fsdp2(args: argparse.Namespace, config: LocalSGDConfig, curve: Curve) -> None:
    """Train from the newest checkpoint; a world of other replicas and shards goes on from it."""
    shards = args.shards or int(os.environ["LOCAL_WORLD_SIZE"])
    replicas = dist.get_world_size() // shards
    mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))
    model = Llama()
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    local = LocalSGD(model, optimizer, mesh, config, OUTER)
    flash = holdfast.Checkpointer(args.checkpoint_dir, shards=local.shards())
    flash.load()
    sent = bytes_of(model, shards, replicas)
    while local.steps < args.steps:
        loss = train_step(model, optimizer, local.steps, args.batch)
        log(local.steps, loss)
        curve.add(local.steps, loss, sent * local.is_warming_up, local.replicas.sent)
        if local.steps == args.steps and args.way == "edit":
            local.finish()  # before the last save: it has the weights that all have agreed on
        if save(flash, local, args, loss) is holdfast.SAVE_AND_STOP:
            flash.close()
            return
    if args.way == "a-edit":  # others may have data yet
        local.finish(lambda: save(flash, local, args) is holdfast.SAVE_AND_STOP)
    flash.close(local.steps if args.way == "edit" else None)
    validate(model)


def save(
    flash: holdfast.Checkpointer, local: LocalSGD, args: argparse.Namespace, loss: Any = None
) -> holdfast.Action:
    """Report a step, and save it if it is due: by time the replicas are together in a round only.

    Their steps are unlike then, so the number of the round stands for the step.
    """
    if args.way == "edit":
        return flash.step(local.steps, samples=args.batch, loss=loss)
    if local.together:
        return flash.step(local.rounds, samples=args.batch * local.alone, loss=loss)
    return holdfast.CONTINUE


def train_plainly(args: argparse.Namespace, curve: Curve) -> None:
    """Train by DDP, whose ranks agree on gradients in each step, to compare with."""
    model = DistributedDataParallel(Llama())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sent = bytes_of(model, 1, dist.get_world_size())
    for step in range(args.steps):
        loss = train_step(model, optimizer, step, args.batch)
        log(step + 1, loss)
        curve.add(step + 1, loss, sent)
        if holdfast.init().step(step + 1, samples=args.batch, loss=loss) is holdfast.SAVE_AND_STOP:
            return
    validate(model)


def train_ddp(args: argparse.Namespace, config: LocalSGDConfig, curve: Curve) -> None:
    """Train without checkpoints: a replica under DDP keeps its state in its optimizer's state."""
    model = DistributedDataParallel(Llama())  # which has no buffers to broadcast
    state = PostLocalSGDState(
        process_group=None,
        subgroup=None,
        start_localSGD_iter=args.warmup,
        post_local_gradient_allreduce=False,
    )
    model.register_comm_hook(state, post_localSGD_hook)
    averager = OuterOptimPeriodicModelAverager(local_sgd_config=config, outer_optim_config=OUTER)
    inner = torch.optim.AdamW(model.parameters(), lr=args.lr)
    optimizer = StatefulPostLocalSGDOptimizer(optim=inner, averager=averager)
    for step in range(args.steps):
        loss = train_step(model, optimizer, step, args.batch)
        log(step + 1, loss)
        sent = bytes_of(model, 1, dist.get_world_size())
        is_sent = step < args.warmup or (step + 1 - args.warmup) % args.interval == 0
        curve.add(step + 1, loss, sent * is_sent)
        if holdfast.init().step(step + 1, samples=args.batch, loss=loss) is holdfast.SAVE_AND_STOP:
            return
    averager.finish()
    validate(model)


def bytes_of(model: nn.Module, shards: int, replicas: int) -> int:
    """Return what a rank sends to the other replicas in a step that all agree on, by a ring."""
    whole = sum(one.numel() * one.element_size() for one in model.parameters())
    return 2 * (replicas - 1) * whole // (replicas * shards)


def train_step(model: nn.Module, optimizer: Any, step: int, batch: int) -> torch.Tensor:
    """Take one step on samples that only this rank sees."""
    text, _ = english_text.split(english_text.read(None), CONTEXT)
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    starts = torch.randint(len(text) - CONTEXT, (batch,), generator=generator)
    loss = next_byte_loss(model, english_text.windows(text, starts, CONTEXT))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def validate(model: nn.Module) -> None:
    """Print the loss over a part of the text that was never trained on; collective."""
    _, text = english_text.split(english_text.read(None), CONTEXT)
    starts = english_text.even_starts(text, CONTEXT)[:128]
    loss = next_byte_loss(model, english_text.windows(text, starts, CONTEXT))
    if dist.get_rank() == 0:
        entropy = english_text.unigram_entropy(text)
        print(f"validation loss {loss:.3f}, unigram entropy {entropy:.3f} nats/byte", flush=True)


def log(step: int, loss: torch.Tensor) -> None:
    """Print this replica's loss now and then."""
    if step % 20 == 0 and dist.get_rank() == 0:
        print(f"step {step}  loss {loss:.3f}", flush=True)


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Train a small Llama.", allow_abbrev=False)
    parser.add_argument("--parallel", choices=("fsdp2", "ddp"), default="fsdp2")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--warmup", type=int, default=20, help="steps that reduce gradients")
    parser.add_argument("--way", choices=("edit", "a-edit", "ddp"), default="edit")
    parser.add_argument("--interval", type=int, default=8, help="steps between rounds of EDiT")
    parser.add_argument("--seconds", type=float, default=0.4, help="between rounds of A-EDiT")
    parser.add_argument("--curve", type=Path, help="add this replica's losses to a CSV file")
    parser.add_argument("--batch", type=int, default=8, help="samples of a rank")
    parser.add_argument("--shards", type=int, help="ranks of a replica; by default those of a node")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--checkpoint-dir", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
