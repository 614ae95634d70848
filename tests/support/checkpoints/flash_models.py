"""Models for worlds of every kind: whole, FSDP2, tensor parallel, or both; for ranks only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

PLACEMENTS = {"columns": "1", "grid": "01", "hybrid": "R0", "fsdp-tp": "0"}
"""Kinds of worlds whose parameters are DTensors: the dimension that each of the mesh's shards."""
GRIDS = {1: (1, 1), 2: (2, 1), 3: (1, 3), 4: (2, 2)}
"""FSDP2 × tensor parallelism by size of the world: 3 has no mesh with two dimensions above 1."""


def backward(world: Mapping[str, Any], model: Any, inputs: Any) -> None:
    """Compute gradients; a model of bare DTensors has no forward, and takes what it gets."""
    if world["kind"] not in PLACEMENTS:
        model(inputs).square().mean().backward()
        return
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)


def evaluate(model: Any, inputs: Any) -> None:
    """Run without training, after which FSDP2 leaves the root's parameters whole."""
    model.eval()
    with torch.no_grad():
        model(inputs)
    model.train()


def model_of(world: Mapping[str, Any]) -> Any:
    """Return the model of a world of any kind but the small ones."""
    model = nn.Sequential(nn.Linear(1024, 901), nn.BatchNorm1d(901), nn.ReLU(), nn.Linear(901, 7))
    if world["kind"] == "ddp":
        return DistributedDataParallel(model)
    if world["kind"] == "fsdp":
        fully_shard(model[0])
        fully_shard(model)
    if world["kind"] in PLACEMENTS:
        _distribute(model, world)
    return model


def _distribute(model: Any, world: Mapping[str, Any]) -> None:
    """Make every parameter a DTensor, as tensor parallelism does, alone or over FSDP's mesh."""
    count, text = world["world"], PLACEMENTS[world["kind"]]
    two = len(text) == 2 or world["kind"] == "fsdp-tp"
    names = ("outer", "inner") if two else ("inner",)
    whole = init_device_mesh("cpu", (2, count // 2) if two else (count,), mesh_dim_names=names)
    mesh = whole["inner"] if len(text) == 1 else whole
    for module in model.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            kinds = [
                Replicate() if kind == "R" or int(kind) >= value.dim() else Shard(int(kind))
                for kind in text
            ]
            setattr(module, name, nn.Parameter(distribute_tensor(value.detach(), mesh, kinds)))
    if world["kind"] == "fsdp-tp":
        fully_shard(model, mesh=whole["outer"])


def small(kind: str, world: int) -> Any:
    """Return a small model that each of the matrix's kinds can train with a forward of its own.

    Rows, columns and vectors whose lengths some worlds divide and others do not; the middle one
    every world divides, which tensor parallelism asks for.
    """
    model = nn.Sequential(nn.Linear(65, 36), nn.ReLU(), nn.Linear(36, 7), nn.BatchNorm1d(7))
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp":
        fully_shard(model[0])
        fully_shard(model)
        return model
    shape = GRIDS[world] if kind == "2-d" else (1, world)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("rows", "columns"))
    parallelize_module(model, mesh["columns"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if kind == "2-d":
        fully_shard(model[0], mesh=mesh["rows"])
        fully_shard(model, mesh=mesh["rows"])
    return model
