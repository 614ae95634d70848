"""A script under an agent whose replicas choose how they agree: two, each of one rank.

Compute is slept, and each reduction of a unit takes longer than that. The command line names a
file: once it is there, the link is fast. With `elastic` behind it replicas come and go, and train
until the file is there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

_STEPS = 300
_STEP_SECONDS = 0.01
_SLOW_SECONDS = 0.1


def main() -> None:
    """Train."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import holdfast
    from holdfast.local_sgd import LocalSGD, members_of_environment, mesh_of
    from holdfast.local_sgd.config import LocalSGDConfig

    job = holdfast.init()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    fast, is_elastic = Path(sys.argv[1]), "elastic" in sys.argv
    _slow_down(dist, fast)
    replicas: Any = members_of_environment() if is_elastic else None
    if replicas is None:
        shape = (dist.get_world_size(), 1)
        replicas = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    model: Any = torch.nn.Linear(64, 64)
    fully_shard(model, mesh=mesh_of(replicas, "cpu") if is_elastic else replicas["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = LocalSGDConfig(
        local_sgd_sync_interval=2 if is_elastic else 1,
        switching="act",
        switching_tolerated=0.5,
    )
    local = LocalSGD(model, optimizer, replicas, config)
    while not (fast.exists() if is_elastic else local.steps >= _STEPS):
        time.sleep(_STEP_SECONDS)
        model(torch.ones(2, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        job.step(local.steps)


class _SlowWork:
    """A reduction on its way, which takes longer than a step until a file is there."""

    def __init__(self, work: Any, seconds: float) -> None:
        self._work, self._seconds = work, seconds

    def is_completed(self) -> bool:
        """Tell if nobody would wait for it."""
        return bool(self._work.is_completed())

    def wait(self, *limit: Any) -> Any:
        """Return when the result is there, on the slow link."""
        time.sleep(self._seconds)
        return self._work.wait(*limit)


def _slow_down(dist: Any, fast: Path) -> None:
    """Let each reduction of a unit take longer than a step, until a file is there.

    Where it is only begun, the time passes when it is waited for, as on a slow network.
    """
    plain = dist.all_reduce

    def slow(tensor: Any, *given: Any, **named: Any) -> Any:
        seconds = 0.0 if tensor.numel() <= 64 or fast.exists() else _SLOW_SECONDS
        work = plain(tensor, *given, **named)
        if work is not None:
            return _SlowWork(work, seconds)
        time.sleep(seconds)
        return None

    dist.all_reduce = slow


if __name__ == "__main__":
    main()
