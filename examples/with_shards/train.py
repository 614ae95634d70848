"""Train a small GPT on shards that the job's master leases: a fast rank reads more of them.

    python examples/with_shards/train.py                         # alone
    torchrun --nproc-per-node=2 examples/with_shards/train.py    # shards are split by rank
    holdfast run examples/with_shards/job.yaml                   # leased, through kills and resizes

Each record is read once per epoch, with respect to the step that training goes on from. With
`--record=DIR` each rank writes down what it has read, and `holdfast samples DIR` counts.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[1]))

import english_text
import holdfast
from gpt_model import CONTEXT, GPT, next_byte_loss
from holdfast.data.shards import ShardReader
from launched_world import join_world
from progress import Progress

SHARDS = 48


class Text:
    """The text as shards, each of them a range of windows; files are read in the same way."""

    def __init__(self, limit: int) -> None:
        """Take the first windows of the text."""
        self.text, _ = english_text.split(english_text.read(None), CONTEXT)
        self.starts = english_text.even_starts(self.text, CONTEXT)[:limit]
        self.names = [f"part-{number:02}" for number in range(SHARDS)]

    def read(self, shard: str, start: int) -> Iterator[Tensor]:
        """Yield the windows of a shard from the one numbered `start` on."""
        mine = self.starts[self.names.index(shard) :: SHARDS]
        for at in range(start, len(mine)):
            yield english_text.windows(self.text, mine[at : at + 1], CONTEXT)[0]


def main() -> None:
    """Train until no shard is left, print the loss."""
    args = arguments()
    holdfast.init()
    torch.set_num_threads(1)
    join_world()
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    done, text = Progress(), Text(args.windows)
    shards = ShardReader(text.names, text.read, epochs=args.epochs, seed=0, record=args.record)
    flash = holdfast.Checkpointer(
        args.checkpoint_dir, model=model, optimizer=optimizer, extra={"progress": done},
        per_rank={"shards": shards},
    )  # fmt: skip
    flash.load()
    while (loss := step(model, optimizer, shards, args.batch)) is not None:
        done.step += 1
        time.sleep(args.pause)
        if done.step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {done.step}  loss {loss:.3f}", flush=True)
        shards.commit(done.step)  # all records so far are part of the state after this step
        if flash.step(done.step, loss=loss) is holdfast.SAVE_AND_STOP:
            break
    flash.close(done.step)


def step(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    shards: ShardReader[Tensor],
    batch: int,
) -> float | None:
    """Make a step with the next records of all ranks; None: no rank has any more.

    At the end some ranks have less than others: each counts by its records.
    """
    records = [record.value for record in itertools.islice(shards, batch)]
    count = torch.tensor(float(len(records)))
    windows = torch.stack(records) if records else torch.zeros(1, CONTEXT + 1, dtype=torch.long)
    dist.all_reduce(count)
    if not count:
        return None
    bytes_of_all = count.item() * CONTEXT
    loss = next_byte_loss(model, windows) * bool(records) / bytes_of_all
    (loss * dist.get_world_size()).backward()  # DDP takes the mean over ranks
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item()


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Train a small GPT.", allow_abbrev=False)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--windows", type=int, default=2000, help="records of an epoch")
    parser.add_argument("--batch", type=int, default=8, help="records of a rank in a step")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds behind a step")
    parser.add_argument("--checkpoint-dir", type=Path)
    parser.add_argument("--record", default="", help="folder for records of what was read")
    return parser.parse_args()


if __name__ == "__main__":
    main()
