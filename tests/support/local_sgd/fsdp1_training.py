"""Training under FSDP1's HYBRID_SHARD with local SGD, as `fsdp2_training` has it for FSDP2."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from checkpoints.forked_worlds import serve
from local_sgd import fsdp2_training
from local_sgd.fsdp2_facts import mesh_of
from local_sgd.tiny_model import tiny_model


def hybrid(model: Any, mesh: Any, **options: Any) -> Any:
    """Return the model under FSDP1, each block a unit."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    given = {
        "sharding_strategy": ShardingStrategy.HYBRID_SHARD,
        "use_orig_params": True,
        "device_id": torch.device("cpu"),
        "auto_wrap_policy": ModuleWrapPolicy({type(model.blocks[0])}),
        **options,
    }
    return FullyShardedDataParallel(model, device_mesh=mesh, **given)


def train(world: Mapping[str, Any], pipe: Any) -> None:
    """Train for `steps`, go on in new objects after `resumed` of them; send the whole weights."""
    import torch

    from holdfast.local_sgd import HybridShardLocalSGD

    mesh = mesh_of(world)
    at = tuple(mesh.get_coordinate())

    def made() -> tuple[Any, Any, Any]:
        model = hybrid(tiny_model(world.get("options", {})), mesh, **world.get("fsdp", {}))
        optimizer = fsdp2_training.optimizer_of(model, world)
        configs = fsdp2_training.configs_of(world)
        return model, optimizer, HybridShardLocalSGD(model, optimizer, *configs)

    model, optimizer, local = made()
    outcomes = 0
    for step in range(world["steps"]):
        if step == world.get("resumed"):
            kept = io.BytesIO()
            weights = [unit.shard().clone() for unit in local.modules]
            torch.save([local.state_dict(), optimizer.state_dict(), weights], kept)
            model, optimizer, local = made()
            kept.seek(0)
            state, inner, weights = torch.load(kept, weights_only=True)
            for unit, values in zip(local.modules, weights, strict=True):
                unit.shard().copy_(values)
            optimizer.load_state_dict(inner)
            local.load_state_dict(state)
        fsdp2_training.disturb(world, step, at[0], optimizer)
        fsdp2_training.run_step(world, model, optimizer, step, at)
        outcomes += len(local.outcomes)
        local.outcomes = []
    if world.get("closing"):
        local.sync()
    pipe.send({"weights": _whole(model), "outcomes": outcomes, "steps": local.steps})


def _whole(model: Any) -> dict[str, Any]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        return {
            name.replace("_fsdp_wrapped_module.", ""): one.detach().clone().tolist()
            for name, one in model.named_parameters()
        }


def refused(world: Mapping[str, Any], pipe: Any) -> None:
    """Make a `HybridShardLocalSGD` in ways that it refuses; send the messages."""
    import torch
    from torch.distributed.fsdp import ShardingStrategy

    from holdfast.local_sgd import HybridShardLocalSGD
    from holdfast.local_sgd.config import LocalSGDConfig
    from holdfast.local_sgd.errors import LocalSGDError

    mesh, said = mesh_of(world), {}

    def tell(name: str, model: Any, call: str = "rounds") -> None:
        config = LocalSGDConfig(local_sgd_sync_interval=2)
        try:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            local = HybridShardLocalSGD(model, optimizer, config)
            getattr(local, call)()
        except LocalSGDError as error:
            said[name] = str(error)

    tell("plain", tiny_model({}))
    full = {"sharding_strategy": ShardingStrategy.FULL_SHARD}
    tell("full shard", hybrid(tiny_model({}), mesh["shard"], **full))
    tell("prefetch", hybrid(tiny_model({}), mesh, forward_prefetch=True))
    tell("shards", hybrid(tiny_model({}), mesh), "shards")
    pipe.send(said)


if __name__ == "__main__":
    serve({"train": train, "refused": refused, "reference": fsdp2_training.reference})
