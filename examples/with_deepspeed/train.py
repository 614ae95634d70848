"""Fits a small network to a sine with DeepSpeed, ZeRO of any stage, through Holdfast.

Holdfast's lines are the imports, the `Checkpointer` with its `load()`, and `flash.step()`, which
also says when to stop for a change of the world.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn

import holdfast
from holdfast.integrations.deepspeed import Checkpointer

ROWS = 24
"""Rows of a step in the whole world, which 1, 2, 3, 4, 6 and 8 ranks share equally."""


def main() -> None:
    """Train from the step that the world starts from to the last one."""
    parser = argparse.ArgumentParser(
        description="Fit a small network to a sine.", allow_abbrev=False
    )
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--stage", type=int, default=3, choices=(1, 2, 3))
    parser.add_argument("--pause-ms", type=int, default=0, help="pause after each step")
    parser.add_argument("--loss-log", type=Path)
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    args = parser.parse_args()
    engine = engine_of(args.stage)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    flash = Checkpointer(args.checkpoint_dir, engine)
    done = flash.load()
    for step in range(done + 1, args.steps + 1):
        x = rows_of(step)[rank * ROWS // world : (rank + 1) * ROWS // world]
        loss = nn.functional.mse_loss(engine(x), x.sin())
        engine.backward(loss)
        engine.step()
        torch.distributed.all_reduce(mean := loss.detach().clone())
        if rank == 0:
            log(args.loss_log, step, mean.item() / world)
        time.sleep(args.pause_ms / 1000)
        done = step
        if flash.step(step, samples=len(x), loss=mean / world) is holdfast.SAVE_AND_STOP:
            break
    flash.close(done)


def engine_of(stage: int) -> Any:
    """Return an engine; its batch is the same in a world of any size."""
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        torch.set_num_threads(1)
        # It would be compiled at the first start, for a minute; gloo reduces as well.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    config = {
        "train_batch_size": ROWS,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20}},
        "zero_optimization": {"stage": stage},
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=config
    )
    return engine


def rows_of(step: int) -> torch.Tensor:
    """Return a step's rows; they depend on nothing else."""
    generator = torch.Generator().manual_seed(step)
    return (torch.rand(ROWS, 1, generator=generator) * 2 - 1) * math.pi


def log(file: Path | None, step: int, loss: float) -> None:
    """Print the loss now and then, and note it in a file if there is one."""
    if step % 20 == 0:
        print(f"step {step}  loss {loss:.4f}", flush=True)
    if file is not None:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"step": step, "loss": loss}) + "\n")


if __name__ == "__main__":
    main()
