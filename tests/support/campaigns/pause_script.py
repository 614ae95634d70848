"""A plain torch script that makes small steps and ordinary pauses.

Arguments: a folder, a seed. It knows nothing of Holdfast. Every rank draws the same pauses: an
evaluation on rank 0 or on all, a checkpoint by `torch.save`, garbage collected, a compilation.
Rank 0 counts its steps and pauses in FOLDER/steps; FOLDER/end ends them.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

STEPS_BETWEEN = 4_000
"""Between two pauses, in the middle."""
LONGEST_SECONDS = 30.0
SAID_EVERY = 500
WIDTH = 256


def _evaluate(seconds: float, luck: random.Random) -> None:
    """Run the model forward; by a coin on rank 0 only, while the others wait for it."""
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)])
    if luck.random() < 0.5 and dist.get_rank():
        return
    until = time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < until:
            model(torch.ones(64, WIDTH))


def _save(seconds: float, _: random.Random) -> None:
    """Save on rank 0 only, again and again for so long."""
    if dist.get_rank():
        return
    until = time.monotonic() + seconds
    state = {"weights": torch.ones(1 << 20)}
    while time.monotonic() < until:
        torch.save(state, Path(sys.argv[1]) / "saved.pt")


def _collect(_: float, __: random.Random) -> None:
    garbage = [[number] for number in range(300_000)]
    del garbage
    gc.collect()


def _compile(_: float, luck: random.Random) -> None:
    """Compile a function that is new each time."""
    factor = luck.random()
    torch._dynamo.reset()
    torch.compile(lambda one: one * factor + 1, backend="aot_eager")(torch.ones(8))


PAUSES: dict[str, Callable[[float, random.Random], None]] = {
    "evaluation": _evaluate,
    "checkpoint": _save,
    "garbage": _collect,
    "compilation": _compile,
}


def main() -> None:
    """Train and pause until FOLDER/end is there."""
    folder, luck = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    step, pauses, next_pause = 0, Counter[str](), STEPS_BETWEEN
    while True:
        tensor = torch.ones(64) * step
        dist.all_reduce(tensor)
        step += 1
        if step >= next_pause:
            name = luck.choice(sorted(PAUSES))
            PAUSES[name](min(LONGEST_SECONDS, luck.expovariate(0.2)), luck)
            pauses[name] += 1
            next_pause = step + int(luck.expovariate(1 / STEPS_BETWEEN)) + 1
        if step % SAID_EVERY == 0:
            if rank == 0:
                (folder / "steps.new").write_text(json.dumps({"steps": step, "pauses": pauses}))
                (folder / "steps.new").rename(folder / "steps")
            over = torch.tensor([float((folder / "end").exists())])
            dist.all_reduce(over)
            if over.item():
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
