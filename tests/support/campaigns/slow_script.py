"""A plain torch script, one rank of which becomes slow.

Arguments: `ddp` or `fsdp`, a folder, seconds of a step. It knows nothing of Holdfast. Each rank
sleeps, and trains a small model. FOLDER/slow holds a rank and a factor: that rank works so many
times as long from its next step on. Rank 0 counts its steps in FOLDER/steps; FOLDER/end ends them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 128
LAYERS = 3


def _model(kind: str) -> nn.Module:
    layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(layers)
    from torch.distributed.fsdp import fully_shard

    for layer in layers:
        fully_shard(layer)
    fully_shard(layers)
    return layers


def _factor(slow: Path) -> float:
    try:
        rank, factor = slow.read_text().split()
    except FileNotFoundError:
        return 1.0
    return float(factor) if int(rank) == dist.get_rank() else 1.0


def main() -> None:
    """Train until FOLDER/end is there."""
    kind, folder, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    dist.init_process_group("gloo")
    model = _model(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while True:
        time.sleep(seconds * _factor(folder / "slow"))
        model(torch.ones(8, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if dist.get_rank() == 0:
            (folder / "steps.new").write_text(str(step))
            (folder / "steps.new").rename(folder / "steps")
        over = torch.tensor([float((folder / "end").exists())])
        dist.all_reduce(over)
        if over.item():
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
