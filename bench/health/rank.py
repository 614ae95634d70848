"""One rank of a recorded run: `rank.py CAUSE STEPS SOCKET OUT` trains a small model with DDP.

It prints nothing, and writes what torch's flight recorder holds at the end to OUT.
"""

from __future__ import annotations

import dataclasses
import gc
import http.client
import json
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

DEVICE_SECONDS = 0.03
"""Of each step, slept: as long as a device would compute. The rest of a step is real."""
SLOW_SECONDS = 0.03
SLOW_RANK, SLOW_FROM = 2, 120
"""The rank that is slow, and its first slow step."""
TIMEOUT_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One step of one rank."""

    step: int
    rank: int
    rng: random.Random

    @property
    def slow(self) -> bool:
        """Return True if the rank is slow in this step, in a run that has a slow rank."""
        return self.rank == SLOW_RANK and self.step >= SLOW_FROM


def _collect(turn: Turn) -> float:
    """Collect garbage at steps of the rank's own, with a large heap to look through."""
    if turn.step % 20 == 5 * turn.rank:
        gc.collect()
    return 0.0


CAUSES: Mapping[str, Callable[[Turn], float]] = {
    "quiet": lambda _: 0.0,
    "gc": _collect,
    "length": lambda turn: turn.rng.uniform(-0.01, 0.01),
    "checkpoint": lambda turn: 0.3 if turn.rank == 0 and turn.step % 40 == 39 else 0.0,
    "slow rank": lambda turn: SLOW_SECONDS if turn.slow else 0.0,
    "slow loader": lambda turn: turn.rng.expovariate(1 / SLOW_SECONDS) if turn.slow else 0.0,
}
"""Seconds more that a rank needs in a step."""


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self.path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_SECONDS)
        self.sock.connect(self.path)


def recorded(path: str) -> bytes:
    """Return the content of the flight recorder, as JSON."""
    connection = _Connection(path)
    connection.request("POST", "/handler/fr_trace_json")
    answer = connection.getresponse().read()
    connection.close()
    return answer


def main(cause: str, steps: int, path: str, out: Path) -> None:
    """Train, then write the recorder's entries."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _WorkerServer
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    server = _WorkerServer(path)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(3)))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.06)  # several buckets
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    heap = [[i] for i in range(300_000)] if cause == "gc" else []
    rng, extra = random.Random(rank), CAUSES[cause]
    for step in range(steps):
        time.sleep(DEVICE_SECONDS + extra(Turn(step, rank, rng)))
        loss = model(torch.randn(8, 128)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())  # as scripts do that log it
    del heap
    out.write_text(json.dumps(json.loads(recorded(path))["entries"]))
    dist.barrier()
    server.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
