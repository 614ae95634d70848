"""A sharded model of shapes that no world divides, in ranks that `flash_world` forks.

Fewer rows than ranks, one element, no rows at all, and buffers without a dimension.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from holdfast.flash.checkpointer import Checkpointer

_SHAPES = {
    "two_rows": (2, 5),
    "one": (1,),
    "no_rows": (0, 5),
    "three": (3, 1),
    "no_columns": (4, 0),
}


def _model() -> Any:
    model = nn.Module()
    for name, shape in _SHAPES.items():
        model.register_parameter(name, nn.Parameter(torch.randn(shape)))
    model.register_buffer("count", torch.tensor(0))
    model.register_buffer("scale", torch.tensor(0.5, dtype=torch.float64))
    model.register_buffer("ready", torch.tensor(data=False))
    fully_shard(model)
    return model


def _digest(model: Any, optimizer: Any) -> str:
    """Return a hash of all values and shapes; torch gathers no tensor that has no element."""
    found = hashlib.sha256()
    tensors = [*model.parameters(), *model.buffers()]
    for parameter in model.parameters():
        tensors += [value for _, value in sorted(optimizer.state.get(parameter, {}).items())]
    for tensor in tensors:
        found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        if tensor.numel():
            whole = getattr(tensor, "full_tensor", lambda tensor=tensor: tensor)()
            found.update(whole.detach().numpy().tobytes())
    return found.hexdigest()


def run(world: Mapping[str, Any], pipe: Any) -> None:
    """Load, take two steps with gradients that depend on no world, save them, and tell hashes."""
    torch.manual_seed(world["seed"])
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    with Checkpointer(world["root"], model=model, optimizer=optimizer) as flash:
        start = flash.load()
        pipe.send({"start": start, "loaded": _digest(model, optimizer)})
        for step in range(start + 1, start + 3):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 0.1 * step)
            optimizer.step()
            model.count += 1
            model.ready.fill_(step % 2 == 0)
            flash.save(step)
        pipe.send({"saved": _digest(model, optimizer), "count": int(model.count)})
    pipe.send({"rank": int(os.environ["RANK"])})
    dist.barrier()
