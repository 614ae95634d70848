"""Train a small byte-level GPT on English text: plain PyTorch and five calls of Holdfast.

    python examples/train_gpt.py                                # alone
    torchrun --nproc-per-node=2 examples/train_gpt.py           # under torchrun
    holdfast-run --nproc-per-node=2 examples/train_gpt.py       # under Holdfast
    holdfast run examples/01-minimal.yaml                       # a whole job on this machine

The text is what Python's help() shows; every Python has it. At the end the validation loss is
printed beside the text's unigram entropy, the least that a model can reach which knows only how
often each byte occurs.

The global batch and its order do not depend on the number of processes, and any number of them
can read a checkpoint. So a run that is interrupted, shrinks or grows follows the loss curve of an
unbroken one.
"""

from __future__ import annotations

import argparse
import gc
import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import english_text
import faults
import holdfast
from flags import flags
from gpt_model import CONTEXT, GPT, next_byte_loss
from launched_world import join_world
from loss_log import LossLog
from progress import Progress


def main() -> None:
    """Join the world, train, leave."""
    holdfast.init()  # first: a world that has not called it after 2 s counts as one without steps
    args = faults.parse_args(flags())  # flags().parse_args(), were it not for tests and demo
    torch.set_num_threads(args.threads)
    join_world()
    train(args)
    leave_world()


def train(args: argparse.Namespace) -> None:
    """Train from the newest checkpoint to the last step, then validate."""
    text, validation = english_text.split(english_text.read(args.text), CONTEXT)
    batches = english_text.Batches(text, CONTEXT, args.batch, args.seed)
    torch.manual_seed(args.seed)
    model = parallelize(GPT(), args.parallel)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), fused=True)
    done = Progress()
    flash = holdfast.Checkpointer(
        args.checkpoint_dir,
        model=model,
        optimizer=optimizer,
        extra={"progress": done},
        schedule=holdfast.Schedule(storage_every=args.save_every),
    )
    log = LossLog(args.loss_log, args.log_every, args.steps)

    if flash.load() and dist.get_rank() == 0:
        print(f"restored step {done.step}", flush=True)
    while done.step < args.steps:
        share = batches.share(done.samples, dist.get_rank(), dist.get_world_size())
        set_learning_rate(optimizer, args, done.step)
        loss = train_step(model, optimizer, share.windows, args.batch)
        done.step, done.samples = done.step + 1, done.samples + args.batch
        log.step(done, share, loss)  # before it is saved: what is saved is never done again
        mean, taken = share.mean(loss), share.fingerprint()
        answer = flash.step(done.step, samples=share.bytes, loss=mean, fingerprint=taken)
        if answer is holdfast.SAVE_AND_STOP:
            return  # the job goes on from here in a world of another size
        if args.eval_every and done.step % args.eval_every == 0 and done.step < args.steps:
            validate(done, model, validation)
    flash.close(done.step)
    validate(done, model, validation)


def leave_world() -> None:
    """Leave together: gloo's threads must not be at work any more when Python ends."""
    gc.collect()  # a model that is garbage in a cycle would keep the group, and them, alive
    dist.barrier()
    dist.destroy_process_group()


def parallelize(model: GPT, how: str) -> nn.Module:
    """Replicate the model over the world ("ddp") or shard it ("fsdp2")."""
    if how == "ddp":
        return DistributedDataParallel(model)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train_step(model: nn.Module, optimizer: Optimizer, windows: Tensor, batch: int) -> Tensor:
    """Take one step on this rank's share of the batch; return the share's loss in nats, summed."""
    loss = next_byte_loss(model, windows)
    optimizer.zero_grad()
    # DDP and FSDP2 average gradients over ranks. Shares may differ in size, so each is scaled as
    # its part of the whole batch.
    (loss * dist.get_world_size() / (batch * CONTEXT)).backward()
    optimizer.step()
    return loss.detach()


def set_learning_rate(optimizer: Optimizer, args: argparse.Namespace, step: int) -> None:
    """Warm up in a straight line, then fall to a tenth along a cosine; `step` counts from 0."""
    rise = min(1.0, (step + 1) / args.warmup)
    fall = 0.55 + 0.45 * math.cos(math.pi * min(1.0, step / args.steps))
    for group in optimizer.param_groups:
        group["lr"] = args.lr * rise * fall


def validate(done: Progress, model: nn.Module, text: Tensor) -> None:
    """Print the loss over all of `text` beside the entropy that it has to beat; collective."""
    with holdfast.init().section("eval"):
        loss = mean_loss(model, text)
    if dist.get_rank() == 0:
        entropy = english_text.unigram_entropy(text)
        print(f"validation loss after {done.step} steps: {in_units(loss)}")
        print(f"unigram entropy of that text: {in_units(entropy)}", flush=True)


@torch.no_grad()
def mean_loss(model: nn.Module, text: Tensor) -> float:
    """Return the loss in nats per byte; ranks divide the text's windows among them."""
    starts = english_text.even_starts(text, CONTEXT)
    total = torch.zeros(1, dtype=torch.float64)
    for together in starts.split(64):  # equally many calls on every rank: FSDP2 gathers in each
        mine = together.tensor_split(dist.get_world_size())[dist.get_rank()]
        total += next_byte_loss(model, english_text.windows(text, mine, CONTEXT))
    dist.all_reduce(total)
    return float(total) / (len(starts) * CONTEXT)


def in_units(nats: float) -> str:
    """Return nats per byte as text, in bits too."""
    return f"{nats:.3f} nats/byte = {nats / math.log(2):.3f} bits/byte"


if __name__ == "__main__":
    main()
