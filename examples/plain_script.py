"""A script that has never heard of Holdfast: DDP, and its own checkpoint by torch.save.

It fits a small network to a sine. All it does for its own survival is what torchrun asks of any
script: save now and then, load at the start.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train from the checkpoint, if there is one, to the last step."""
    parser = argparse.ArgumentParser(
        description="Fit a small network to a sine.", allow_abbrev=False
    )
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--save-every", type=int, default=200)
    parser.add_argument("--checkpoint", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    done = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["step"]
        print(f"loaded step {done}", flush=True)
    torch.manual_seed(1 + dist.get_rank() + done)  # other points on each rank, and after a restart
    for step in range(done + 1, args.steps + 1):
        x = (torch.rand(256, 1) * 2 - 1) * math.pi
        loss = nn.functional.mse_loss(model(x), x.sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step % args.save_every == 0 or step == args.steps):
            print(f"step {step}/{args.steps}  loss {loss.item():.1e}", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            save(state, args.checkpoint)
    dist.barrier()
    dist.destroy_process_group()


def save(state: dict[str, object], file: Path) -> None:
    """Write the checkpoint so that it is the old one or the new one, whenever this is killed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, file.with_suffix(".partial"))
    file.with_suffix(".partial").replace(file)


if __name__ == "__main__":
    main()
