"""Training under DDP with flash checkpoints of all replicas; see `forked_worlds`.

Belongs here: what the ranks of a world do. Does not belong here: what is expected
(tests/local_sgd/process), and the same under FSDP2 (`fsdp2_training`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Any

from checkpoints.forked_worlds import Jobs, serve
from local_sgd.fsdp2_training import configs_of, optimizer_of, train_on
from local_sgd.tiny_model import loss_of, tiny_model, tokens_of


def saved(world: Mapping[str, Any], pipe: Any) -> None:
    """Load, train `steps` more, save; send hashes as `fsdp2_training.digests` makes them."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from holdfast.flash.checkpointer import Checkpointer
    from holdfast.local_sgd import OuterOptimPeriodicModelAverager, StatefulPostLocalSGDOptimizer
    from local_sgd.ddp_replicas import register_hook

    replica = dist.get_rank()
    config, outer, gta = configs_of(world)
    model = DistributedDataParallel(tiny_model({}), broadcast_buffers=False)
    averager = OuterOptimPeriodicModelAverager(None, config, gta, outer)
    optimizer = StatefulPostLocalSGDOptimizer(optimizer_of(model, world), averager)
    hooked = functools.cache(
        lambda: register_hook(model, config.local_sgd_warmup_steps, averager.step)
    )

    def step(number: int) -> None:
        hooked()  # once, after the load: its count of steps is that of the averager
        loss_of(model, tokens_of(number, 0, replica, 0)).backward()
        optimizer.step()
        optimizer.zero_grad()

    flash = Checkpointer(world["root"], shards=optimizer.shards(model))
    train_on(world, pipe, flash, step, averager, lambda: digests(model, optimizer))


def digests(model: Any, optimizer: Any) -> dict[str, str]:
    """Return hashes of anchors, momentum, weights and Adam state, in FSDP2's order of units."""
    found = {key: hashlib.sha256() for key in ("anchors", "momentum", "weights", "inner")}
    units = dict(zip(map(id, _flat(optimizer)), optimizer.averager.units, strict=True))
    named = sorted(model.module.named_parameters(), key=lambda one: one[0].startswith("blocks"))
    for _, one in named:
        found["weights"].update(one.detach().numpy().tobytes())
        for key, value in sorted(optimizer.state.get(one, {}).items()):
            plain = f"{key} {value.item()}".encode() if value.dim() == 0 else value.numpy()
            found["inner"].update(plain if isinstance(plain, bytes) else plain.tobytes())
        unit = units[id(one)]
        if unit.has_anchors:
            (anchor,) = unit.anchors.values
            found["anchors"].update(anchor.numpy().tobytes())
            state = unit.anchors.optimizer.state if unit.anchors.optimizer else {}
            for _, value in sorted(state.get(anchor, {}).items()):
                found["momentum"].update(value.numpy().tobytes())
    return {key: one.hexdigest()[:16] for key, one in found.items()}


def _flat(optimizer: Any) -> list[Any]:
    return [one for group in optimizer.param_groups for one in group["params"]]


_JOBS: Jobs = {"saved": saved}

if __name__ == "__main__":
    serve(_JOBS)
