"""A world that counts what its load reads, and how much memory the load takes besides the state.

Runs in the ranks that `flash_world` forks: four squares of weights with AdamW's moments, whole or
as FSDP2 shards.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch.distributed.fsdp import fully_shard

from holdfast.flash.checkpointer import Checkpointer

WIDTH = 2896
"""Of a square: 32 MiB in fp32, which is the largest tensor."""
SQUARES = 4


class PeakMemory:
    """Most anonymous memory of this process meanwhile, in bytes above that of the begin.

    The pages of a mapped file are not anonymous: the kernel takes them back whenever it likes.
    """

    def __init__(self) -> None:
        self._end = threading.Event()
        self._begin = self._most = _anonymous()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._end.wait(0.0005):
            self._most = max(self._most, _anonymous())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def bytes(self) -> int:
        """The most so far."""
        return self._most - self._begin


def _anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError("/proc/self/status has no RssAnon")


def run(world: Mapping[str, Any], pipe: Any) -> None:
    """Load what is there and tell what it took; save a step if there was none."""
    model = torch.nn.Sequential(
        *(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(SQUARES))
    )
    if world["kind"] == "fsdp":
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    flash = Checkpointer(world["root"], model=model, optimizer=optimizer)
    with PeakMemory() as peak:
        start = flash.load()
    tensors = [*model.parameters(), *(t for s in optimizer.state.values() for t in s.values())]
    own = sum(getattr(tensor, "_local_tensor", tensor).nbytes for tensor in tensors)
    read = {key: getattr(flash.read, key) for key in ("memory", "peers", "storage")}
    pipe.send({"start": start, "own": own, "read": read, "peak": peak.bytes})
    if not start:
        flash.save(1, durable=world["durable"])
    flash.close()
