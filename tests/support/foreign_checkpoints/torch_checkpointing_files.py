"""Checkpoints that the torch_checkpointing library writes. See `worlds`."""

from __future__ import annotations

from typing import Any


def prepare() -> None:
    """Import the library with the CPU in CUDA's place, where it gathers its metadata."""
    from megatron_worlds import cpu_shim

    cpu_shim.install()
    import torch_checkpointing  # noqa: F401 - forked ranks find it imported


def _tensors() -> dict[str, Any]:
    """Return global tensors, of sizes that the ranks do not divide."""
    import torch

    torch.manual_seed(7)
    return {
        "rows": torch.randn(7, 5),
        "columns": torch.randn(4, 6).bfloat16(),
        "both": torch.randn(9, 7),
        "strided": torch.randn(8, 3),
        "same": torch.randn(5),
        "short": torch.randn(1, 3),
        "deep.name": torch.arange(6),
        "boxes": torch.randn(6, 4),
    }


def _cut(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return a rank's part of each tensor, on a mesh of 2 × 2."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    placements: dict[str, Any] = {
        "rows": [Shard(0), Replicate()],
        "columns": [Replicate(), Shard(1)],
        "both": [Shard(0), Shard(1)],
        "strided": [_StridedShard(0, split_factor=2), Shard(0)],
        "same": [Replicate(), Replicate()],
        "short": [Shard(0), Replicate()],
    }
    found: dict[str, Any] = {
        name: distribute_tensor(tensors[name], mesh, places) for name, places in placements.items()
    }
    rank = dist.get_rank()
    own = tensors["boxes"][:, rank : rank + 1].clone()  # a column; shards without a DTensor
    own.global_shape, own.global_offsets = (6, 4), ((0, rank), (3, rank))
    own.local_offsets, own.local_sizes = ((0, 0), (3, 0)), ((3, 1), (3, 1))
    return found | {"deep.name": tensors["deep.name"], "boxes": own}


def _write(folder: str, state: dict[str, Any], cut: tuple[str, ...]) -> None:
    from torch_checkpointing import CheckpointManager, ItemSpec
    from torch_checkpointing.config import SyncCheckpointSaverConfig
    from torch_checkpointing.default_metadata import DefaultShardingMetadata
    from torch_checkpointing.default_resharder import DefaultResharder
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    def extracted(self: Any, item_key: str, value: Any) -> Any:
        """Return the boxes of tensors that have them; the library takes them for copies."""
        found = DefaultResharder.extract_sharding_metadata(self, item_key, value)
        if item_key == "model":
            found["boxes",] = DefaultShardingMetadata.from_tensor(value["boxes"])
        return found

    by_boxes = type("ByBoxes", (DefaultResharder,), {"extract_sharding_metadata": extracted})
    config = CheckpointManager.Config(
        items={name: ItemSpec(resharder=by_boxes()) for name in cut},
        save=SyncCheckpointSaverConfig(),
        storage_config=LocalFileSystemStorageConfig(use_direct_io=False),
    )
    manager = CheckpointManager(config)
    manager.save(folder, state)
    manager.close()


def save(folder: str, truth: str, *, resharder: bool = True) -> None:
    """Save a model in parts, its optimizer, and values; and the global tensors for torch.load."""
    import torch
    import torch.distributed as dist
    from torch_checkpointing.state_transformations import optimizer_transform_pre

    tensors = _tensors()
    model = _cut(tensors)
    trained = {name: torch.nn.Parameter(model[name]) for name in ("rows", "both")}
    optimizer = torch.optim.AdamW(trained.items(), lr=0.1)
    for one in trained.values():
        one.grad = one.detach() * 2
    optimizer.step()
    model |= {name: one.detach() for name, one in trained.items()}
    state = optimizer_transform_pre(optimizer.state_dict())
    values = {"epoch": 2, "seen": torch.arange(3), "rank": dist.get_rank()}
    cut = ("model", "optimizer") if resharder else ()
    items = {"model": model, "optimizer": state, "step": 40}
    _write(folder, items | {"loader": values, "shared": {"a": [1, (2.5, None)]}}, cut)
    whole = tensors | {name: model[name].full_tensor() for name in trained}
    moments = {
        f"{name}.{key}": state["state"][name][key].full_tensor()
        for name in trained
        for key in ("exp_avg", "exp_avg_sq")
    }
    if dist.get_rank() == 0:
        torch.save({"model": whole, "optimizer": moments}, truth)


def save_copies(folder: str, *, differ: bool = False) -> None:
    """Save, without a resharder, what each rank has as a whole: the same, or not."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.manual_seed(dist.get_rank() if differ else 0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    _write(folder, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, ())
