"""Trains a small Llama by local SGD whose replicas come and go; a loss restarts one of them alone.

Each replica is a torch world of its own: `init_process_group` has its ranks, and the model's shards
are theirs. The agent names the other replicas by a roster, which `members_of_environment` reads.
The job's file says how many nodes a replica has (`spec.replicaPolicy.nodesPerReplica`). Without an
agent, or without that field, the replicas are fixed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

sys.path.append(str(Path(__file__).parents[1]))  # with_local_sgd

import holdfast
from holdfast.local_sgd import LocalSGD, members_of_environment, mesh_of
from holdfast.local_sgd.config import LocalSGDConfig
from with_local_sgd.llama_model import Llama
from with_local_sgd.train import OUTER, train_step, validate


class Position:
    """Place in the data: what a replica that comes later is given of it."""

    def __init__(self) -> None:
        """Begin at the first samples."""
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the place, at the start of a round."""
        return {"step": self.step}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Take the place of a replica that trains."""
        self.step = state_dict["step"]


def main() -> None:
    """Join the other replicas, train, print the loss."""
    args = arguments()
    job = holdfast.init()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    members = members_of_environment()
    torch.manual_seed(0)
    local, optimizer = sharded(args, members)
    position = Position()
    local.carry("position", position)
    flash = holdfast.Checkpointer(args.checkpoint_dir, shards=local.shards())
    if not local.joined:
        position.step = flash.load()
    replica = int(os.environ.get("HOLDFAST_REPLICA", "0"))
    if position.step >= args.steps:
        local.finish()  # it came with the last round, which the others make now
    while position.step < args.steps:
        loss = train_step(local.model, optimizer, 1000 * position.step + replica, args.batch)
        time.sleep(args.pause)
        position.step += 1
        if position.step % 20 == 0 and dist.get_rank() == 0:
            print(f"replica {replica}  step {position.step}  loss {loss:.3f}", flush=True)
        if position.step >= args.steps:
            local.finish()  # before the last save: it has the weights that all have agreed on
        # Of replicas that come and go one saves, and has all that the others need.
        step = flash.step if local.saves else job.step
        if step(position.step, samples=args.batch, loss=float(loss)) is holdfast.SAVE_AND_STOP:
            flash.close()
            return
    flash.close(position.step if local.saves else None)
    validate(local.model)


def sharded(args: argparse.Namespace, members: Any) -> tuple[LocalSGD, torch.optim.Optimizer]:
    """Return a model that the ranks of this replica shard, once the others have met it."""
    mesh = mesh_of(members, "cpu")
    model = Llama()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    config = LocalSGDConfig(
        local_sgd_sync_interval=args.interval,
        local_sgd_warmup_steps=0,
        pseudo_gradnorm_reduce=True,
        clip_pseudo_grad=10.0,
        skip_anomaly=True,
        ewma_warmup_steps=10,
    )
    return LocalSGD(model, optimizer, members, config, OUTER), optimizer


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Train a small Llama.", allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--interval", type=int, default=8, help="steps between rounds")
    parser.add_argument("--batch", type=int, default=8, help="samples of a rank")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step")
    parser.add_argument("--checkpoint-dir", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
