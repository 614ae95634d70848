"""Worlds that train with DeepSpeed on CPU: one process imports it, then forks their ranks.

Run as a script; see `flash_world`. What it hashes are whole tensors that DeepSpeed itself gathers,
so hashes do not depend on stage and world.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from checkpoints.flash_world import Worlds, serve

ROWS = 12
"""Rows of a batch of the whole world: worlds of 1, 2, 3 and 4 ranks share them equally."""


class DeepSpeedWorlds(Worlds):
    """The script as seen by a test."""

    script = __file__

    def __init__(self) -> None:
        """Start it."""
        super().__init__(DS_ACCELERATOR="cpu", PYTHONWARNINGS="ignore")


def model_of(world: Mapping[str, Any]) -> Any:
    """Return a small model with odd shapes; the world says what is special about it."""
    import torch
    from torch import nn

    torch.manual_seed(world.get("seed", 0))
    model = nn.Sequential(
        nn.Linear(5, world.get("width", 9)),
        nn.Tanh(),
        nn.Linear(world.get("width", 9), 7),
        nn.LayerNorm(7),
        nn.Linear(7, 3),
    )
    model.register_buffer("scale", torch.full((3,), 0.5))
    if world.get("frozen"):
        model[2].weight.requires_grad_(requires_grad=False)
    if world.get("zero_sized"):
        model.register_parameter("nothing", nn.Parameter(torch.empty(0, 4)))
    if world.get("tied"):
        model.add_module("5", nn.Linear(3, 7, bias=False))
        model[5].weight = nn.Parameter(torch.randn(7, 3))
        model.add_module("6", nn.Linear(3, 7, bias=False))
        model[6].weight = model[5].weight
    return model


def groups_of(world: Mapping[str, Any], model: Any) -> Any:
    """Return the parameters for an optimizer: in one group, or weights and biases in two."""
    trained = [one for one in model.parameters() if one.requires_grad]
    if not world.get("groups"):
        return trained
    return [
        {"params": [one for one in trained if one.dim() > 1], "weight_decay": 0.1},
        {"params": [one for one in trained if one.dim() < 2], "lr": 2e-2},
    ]


def optimizer_of(world: Mapping[str, Any], model: Any) -> Any:
    """Return the optimizer of a world, by default AdamW."""
    import torch

    kind = getattr(torch.optim, world.get("optimizer", "AdamW"))
    return kind(groups_of(world, model), lr=1e-2, **world.get("options", {}))


def config_of(world: Mapping[str, Any]) -> dict[str, Any]:
    """Return DeepSpeed's configuration of a world."""
    every = world.get("accumulate", 1)
    found: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": ROWS // world["world"] // every,
        "gradient_accumulation_steps": every,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": world["stage"], **world.get("zero", {})},
        "steps_per_print": 10**9,
    }
    if world.get("dtype", "fp32") != "fp32":
        found[world["dtype"]] = {"enabled": True, **world.get("precision", {})}
    if "scheduler" in world:
        found["scheduler"] = world["scheduler"]
    return found


def engine_of(world: Mapping[str, Any]) -> Any:
    """Return a new engine."""
    import deepspeed

    model = model_of(world)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer_of(world, model), config=config_of(world)
    )
    return engine


def batches(world: Mapping[str, Any], step: int) -> Iterator[Any]:
    """Yield this rank's rows of a step, one tensor for each micro-batch."""
    import torch

    rank, count, every = int(os.environ["RANK"]), world["world"], world.get("accumulate", 1)
    rows = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(step))
    share = rows[rank * ROWS // count : (rank + 1) * ROWS // count]
    yield from share.chunk(every)


def loss_of(model: Any, rows: Any, scale: Any) -> Any:
    """Return the loss of some rows."""
    out = model(rows) * scale
    return out.float().square().mean() + out.float().sum(1).sin().mean()


def train(world: Mapping[str, Any], engine: Any, begin: int, steps: int) -> list[float]:
    """Take optimizer steps; return each one's loss on this rank."""
    losses = []
    for step in range(begin, begin + steps):
        total = 0.0
        for rows in batches(world, step):
            loss = loss_of(engine, rows.to(engine.module.scale.dtype), engine.module.scale)
            engine.backward(loss)
            engine.step()
            total += loss.item()
        losses.append(total / world.get("accumulate", 1))
    return losses


def digests(engine: Any) -> dict[str, str]:
    """Return a hash of every whole tensor: masters, moments, frozen parameters and buffers."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    found: dict[str, str] = {}
    for name, parameter in engine.module.named_parameters():
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        if not parameter.requires_grad or 0 in shape:
            found[f"model.{name}"] = _hash(_whole(parameter), shape)
            continue
        found[f"model.{name}"] = _hash(safe_get_full_fp32_param(parameter), shape)
        for key in ("exp_avg", "exp_avg_sq"):
            moment = safe_get_full_optimizer_state(parameter, key)
            found[f"optimizer.state.{name}.{key}"] = _hash(moment, shape)
        found[f"low.{name}"] = _hash(_whole(parameter), shape)
    for name, buffer in engine.module.named_buffers():
        found[f"model.{name}"] = _hash(buffer, tuple(buffer.shape))
    return found


def _whole(parameter: Any) -> Any:
    """Return the values that the model computes with."""
    import deepspeed

    if not hasattr(parameter, "ds_id"):
        return parameter.detach()
    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def _hash(tensor: Any, shape: tuple[int, ...]) -> str:
    values = tensor.detach().cpu().float().contiguous().view(-1).numpy().tobytes()
    return hashlib.sha256(str(shape).encode() + values).hexdigest()[:16]


def settings(engine: Any) -> dict[str, Any]:
    """Return what an engine keeps besides tensors."""
    inner = engine.optimizer.optimizer
    keys = ("global_steps", "global_samples", "skipped_steps", "micro_steps")
    scaler = vars(engine.optimizer.loss_scaler) if hasattr(engine.optimizer, "loss_scaler") else {}
    scheduler = engine.lr_scheduler
    return {
        "counters": {key: getattr(engine, key) for key in keys},
        "groups": [
            {key: str(value) for key, value in group.items() if key != "params"}
            for group in inner.param_groups
        ],
        "steps": sorted({float(one["step"]) for one in inner.state.values() if "step" in one}),
        "scaler": {key: str(value) for key, value in scaler.items()},
        "scheduler": None if scheduler is None else str(scheduler.state_dict()),
    }


def _save(world: Mapping[str, Any], pipe: Any) -> None:
    """Train, save, and train on: the unbroken run."""
    from holdfast.integrations.deepspeed import Checkpointer

    engine = engine_of(world)
    flash = Checkpointer(world["root"], engine)
    train(world, engine, flash.load(), world["steps"])
    flash.save(world["steps"])
    flash.wait()
    found = {"digests": digests(engine), "settings": settings(engine)}
    flash.close()
    pipe.send({**found, "losses": train(world, engine, world["steps"], world.get("more", 5))})


def _load(world: Mapping[str, Any], pipe: Any) -> None:
    """Start a new engine from each of some checkpoints, and train on."""
    from holdfast.flash.trainer.restore import RestoreError
    from holdfast.integrations.deepspeed import Checkpointer

    answers = []
    for root in world["roots"]:
        engine = engine_of({**world, "seed": 7})
        if world.get("warm"):
            train(world, engine, 100, world["warm"])
        flash = Checkpointer(root, engine)
        before = weights(engine)
        try:
            with warnings.catch_warnings(record=True) as notes:
                warnings.simplefilter("always")
                start = flash.load(partial=world.get("partial", False))
        except RestoreError as error:
            untouched = before == weights(engine) and not engine.global_steps
            answers.append({"refused": str(error), "untouched": untouched})
            continue
        texts = [str(note.message) for note in notes if "holdfast" not in str(note.filename)]
        found = {"start": start, "notes": texts, "settings": settings(engine)}
        if world.get("digest", True):
            found["digests"] = digests(engine)
        found["losses"] = train(world, engine, start, world.get("more", 5))
        flash.close()
        engine.destroy()
        answers.append(found)
    pipe.send({"loads": answers})


def weights(engine: Any) -> str:
    """Return a hash of this rank's own masters and moments; no collective."""
    from holdfast.integrations.deepspeed.partitions import flats_of

    found = hashlib.sha256()
    state = engine.optimizer.optimizer.state
    for flat in flats_of(engine):
        found.update(flat.master.detach().numpy().tobytes())
        for key, value in sorted((state.get(flat.master) or {}).items()):
            found.update(f"{key} {value}".encode())
    found.update(json.dumps(settings(engine)["groups"]).encode())
    return found.hexdigest()


if __name__ == "__main__":
    import deepspeed

    # Compiled at the first use for a minute, and of no use here: gloo reduces small tensors.
    deepspeed.ops.__compatible_ops__["shm_comm"] = False
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    serve({"save": _save, "load": _load})
