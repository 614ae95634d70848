"""Train a small GPT on replicas that stay in step, and that nobody restarts when one is lost.

    python examples/with_replicas/train.py                                  # alone
    torchrun --nproc-per-node=2 examples/with_replicas/train.py             # fixed replicas
    holdfast run examples/with_replicas/job-ddp.yaml                        # a loss restarts one
    holdfast run examples/with_replicas/job-fsdp2.yaml                      # two ranks a replica

Each step has the same micro-batches, however many replicas there are. So the loss is that of an
undisturbed run, whoever is killed and whoever comes.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

sys.path.append(str(Path(__file__).parents[1]))

import english_text
import holdfast
from gpt_model import CONTEXT, GPT, next_byte_loss
from holdfast.data import Batches, BatchOptions
from holdfast.replicas import Replicated, members_of_environment, mesh_of
from launched_world import join_world
from progress import Progress


class Windows(torch.utils.data.Dataset[Tensor]):
    """Windows of the text, by number."""

    def __init__(self, text: Tensor) -> None:
        """Cut the text."""
        self.text, self.starts = text, english_text.even_starts(text, CONTEXT)

    def __len__(self) -> int:
        """Return their count."""
        return len(self.starts)

    def __getitem__(self, number: int) -> Tensor:
        """Return one window: CONTEXT + 1 bytes."""
        return english_text.windows(self.text, self.starts[number : number + 1], CONTEXT)[0]


def main() -> None:
    """Meet the other replicas, train, print the loss."""
    args = arguments()
    job = holdfast.init()
    torch.set_num_threads(1)
    join_world()
    replicated, model, optimizer = replicate(args)
    done = Progress()
    flash = holdfast.Checkpointer(
        args.checkpoint_dir, model=model, optimizer=optimizer, extra={"progress": done}
    )
    flash.load()
    text, _ = english_text.split(english_text.read(None), CONTEXT)
    batches = Batches(
        Windows(text), replicated, micro_batch=args.micro_batch, epochs=1000,
        options=BatchOptions(record=args.record),
    )  # fmt: skip
    for step in batches.steps(done.step):
        loss = None  # a replica that joins has no micro-batch in its first step
        for windows in step:
            loss = next_byte_loss(model, windows) / windows[:, 1:].numel()
            loss.backward()
            time.sleep(args.pause)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        done.step = step.number
        if done.step % 20 == 0 and dist.get_rank() == 0 and loss is not None:
            print(f"replica {replicated.replica}  step {done.step}  loss {loss:.3f}", flush=True)
        # Of replicas that come and go one saves, and has all that the others need.
        save = flash.step if replicated.saves else job.step
        if save(done.step, loss=loss) is holdfast.SAVE_AND_STOP or done.step >= args.steps:
            break
    flash.close(done.step if replicated.saves else None)
    print(f"replica {replicated.replica} ends; for others {replicated.recomputed}", flush=True)


def replicate(args: argparse.Namespace) -> tuple[Replicated, GPT, torch.optim.Optimizer]:
    """Return a model whose gradients are those of the whole job."""
    members = members_of_environment()
    torch.manual_seed(0)
    model = GPT()
    if args.shard:
        for block in model.blocks:
            fully_shard(block, mesh=mesh_of(members, "cpu"))
        fully_shard(model, mesh=mesh_of(members, "cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    replicated = Replicated(model, optimizer, members, micro_batches=args.micro_batches)
    return replicated, model, optimizer


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Train a small GPT.", allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--micro-batches", type=int, default=12, help="of a step, in the whole job")
    parser.add_argument("--micro-batch", type=int, default=4, help="samples of a micro-batch")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--shard", action="store_true", help="FSDP2 over a replica's ranks")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds behind a micro-batch")
    parser.add_argument("--checkpoint-dir", type=Path)
    parser.add_argument("--record", default="", help="folder for records of samples")
    return parser.parse_args()


if __name__ == "__main__":
    main()
