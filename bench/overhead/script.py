"""One rank of the measured training: a busy loop of steps of about 30 ms, DDP over gloo.

`script.py LOG STEPS [--sdk]`: warms up, takes the steps, and writes when they begin and end. Only
with `--sdk` does it know Holdfast, as a script under torchrun would not.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WARM_UP_STEPS = 1000
"""About 25 s. Until then `holdfast-run` still imports what a script may need; its zygote begins
with what every script needs, so that the script starts sooner (docs/benchmarks/start.md)."""
SEEN_SECONDS = 30.0


def main(log: Path, steps: int, *, sdk: bool) -> None:
    """Train."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job = None
    if sdk:
        import holdfast

        job = holdfast.init()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(384, 384) for _ in range(6)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    data = torch.randn(192, 384)
    begun = 0.0
    for step in range(1, WARM_UP_STEPS + steps + 1):
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        value = float(loss.detach())
        if job is not None:
            job.step(step, samples=len(data), loss=value)
        if step == WARM_UP_STEPS:
            dist.barrier()
            begun = _mark(log, "begun")
    dist.barrier()
    _mark(log, "ended", seconds=(time.monotonic() - begun) / steps)
    _await(log.with_suffix(".seen"))
    dist.destroy_process_group()


def _await(seen: Path) -> None:
    """Stay until the launcher has been looked at: it ends with its ranks."""
    end = time.monotonic() + SEEN_SECONDS
    while not seen.exists() and time.monotonic() < end:
        time.sleep(0.05)


def _mark(log: Path, what: str, **more: float) -> float:
    now = time.monotonic()
    line = json.dumps({"what": what, "pid": os.getpid(), **more})
    with log.open("a") as file:
        file.write(line + "\n")
    return now


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sdk="--sdk" in sys.argv)
