"""Worlds that train with DeepSpeed on CPU, run as a script (`forked_worlds`).

What it hashes are whole tensors that DeepSpeed itself gathers,
so hashes do not depend on stage and world.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from checkpoints.forked_worlds import ForkedWorlds, serve

ROWS = 12
"""Rows of a batch of the whole world: worlds of 1, 2, 3 and 4 ranks share them equally."""


class DeepSpeedWorlds(ForkedWorlds):
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
    model = nn.Module()
    model.first = nn.Linear(5, world.get("width", 9))
    model.middle = nn.Linear(world.get("width", 9), 5)
    model.norm = nn.LayerNorm(5)
    model.again = model.first if world.get("tied") else nn.Linear(5, world.get("width", 9))
    model.head = nn.Linear(world.get("width", 9), 3)
    model.register_buffer("scale", torch.full((3,), 0.5 + world.get("seed", 0)))
    if world.get("frozen"):
        model.middle.weight.requires_grad_(False)
    if world.get("zero_sized"):
        model.norm.register_parameter("nothing", nn.Parameter(torch.empty(0, 4)))
    model.forward = lambda rows: _forward(model, rows)
    return model


def _forward(model: Any, rows: Any) -> Any:
    hidden = model.middle(model.first(rows).tanh())
    return model.head(model.again(model.norm(hidden)).tanh()) * model.scale.to(hidden.dtype)


def groups_of(world: Mapping[str, Any], model: Any) -> Any:
    """Return the parameters for an optimizer: in one group, or weights and biases in two."""
    trained = [one for one in model.parameters() if one.requires_grad and one.numel()]
    if not world.get("groups"):
        return trained
    return [
        {"params": [one for one in trained if one.dim() > 1], "weight_decay": 0.1},
        {"params": [one for one in trained if one.dim() < 2], "lr": 2e-2},
    ]


def optimizer_of(world: Mapping[str, Any], model: Any) -> Any:
    """Return the optimizer of a world, by default AdamW."""
    import deepspeed
    import torch

    name = world.get("optimizer", "AdamW")
    kind = getattr(deepspeed.ops.adam if name == "DeepSpeedCPUAdam" else torch.optim, name)
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
        "gradient_clipping": 0.0,  # 1.0 by default, which torch alone does not do
        "steps_per_print": 10**9,
    }
    if world.get("dtype", "fp32") != "fp32":
        found[world["dtype"]] = {"enabled": True, **world.get("precision", {})}
    if "accumulation_dtype" in world:
        found["data_types"] = {"grad_accum_dtype": world["accumulation_dtype"]}
    if "scheduler" in world:
        found["scheduler"] = world["scheduler"]
    return found


def engine_of(world: Mapping[str, Any]) -> Any:
    """Return a new engine."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    if world.get("dtype") == "fp16":
        # DeepSpeed refuses it on CPU for its speed; torch computes it.
        get_accelerator().is_fp16_supported = lambda: True
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


def loss_of(model: Any, rows: Any) -> Any:
    """Return the loss of some rows."""
    out = model(rows).float()
    return out.square().mean() + out.sum(1).sin().mean()


def train(world: Mapping[str, Any], engine: Any, begin: int, steps: int) -> list[float]:
    """Take optimizer steps; return each one's loss on this rank."""
    losses = []
    for step in range(begin, begin + steps):
        total = 0.0
        for rows in batches(world, step):
            loss = loss_of(engine, rows.to(engine.module.head.weight.dtype))
            engine.backward(loss)
            engine.step()
            total += loss.item()
        losses.append(total / world.get("accumulate", 1))
    return losses


def digests(engine: Any, moments: Sequence[str] = ("exp_avg", "exp_avg_sq")) -> dict[str, str]:
    """Return a hash of every whole tensor: masters, moments, frozen parameters and buffers."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    found: dict[str, str] = {}
    zero = engine.optimizer
    if hasattr(zero, "_hp_optimizer_states_linked"):
        # DeepSpeed links all groups once the first has taken a step: the others had nothing yet.
        zero._hp_optimizer_states_linked = False
        zero._lazy_init_hp_params_optimizer_state()
    for name, parameter in engine.module.named_parameters():
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        if 0 in shape:
            continue  # stage 3 cannot gather it
        if not parameter.requires_grad:
            found[f"model.{name}"] = _hash(_whole(parameter), shape)
            continue
        found[f"model.{name}"] = _hash(safe_get_full_fp32_param(parameter), shape)
        for key in moments:
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
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    scale = vars(scaler) if scaler is not None and scaler.dynamic else {}
    scheduler = engine.lr_scheduler
    return {
        "counters": {key: getattr(engine, key) for key in keys},
        "groups": [
            {key: str(value) for key, value in group.items() if key != "params"}
            for group in inner.param_groups
        ],
        "steps": sorted({float(one["step"]) for one in inner.state.values() if "step" in one}),
        "scaler": {key: str(value) for key, value in scale.items()},
        "scheduler": None if scheduler is None else str(scheduler.state_dict()),
    }


def _moments(world: Mapping[str, Any]) -> list[Sequence[str]]:
    return [world["moments"]] if "moments" in world else []


def _save(world: Mapping[str, Any], pipe: Any) -> None:
    """Train, save, and train on: the unbroken run."""
    from holdfast.integrations.deepspeed import Checkpointer

    engine = engine_of(world)
    flash = Checkpointer(world["root"], engine)
    train(world, engine, flash.load(), world["steps"])
    flash.save(world["steps"])
    flash.wait()
    found = {"digests": digests(engine, *_moments(world)), "settings": settings(engine)}
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
            untouched = before == weights(engine)
            answers.append({"refused": str(error), "untouched": untouched})
            continue
        texts = [str(note.message) for note in notes if "holdfast" not in str(note.filename)]
        found = {"start": start, "notes": texts, "settings": settings(engine)}
        if world.get("digest", True):
            found["digests"] = digests(engine, *_moments(world))
        found["losses"] = train(world, engine, start, world.get("more", 5))
        flash.close()
        engine.destroy()
        answers.append(found)
    pipe.send({"loads": answers})


def _calls(world: Mapping[str, Any], pipe: Any) -> None:
    """Do what a script does with DeepSpeed's own two calls: some loads, then a save per step."""
    from holdfast.integrations.deepspeed import plug_in

    engine = engine_of(world)
    plugged = None if world.get("own") else plug_in(engine)
    loads = []
    for tag in world.get("tags", []):
        path, client = engine.load_checkpoint(world["root"], tag)
        known = digests(engine) if path else {}
        loads.append({"path": path, "client": client, "digests": known})
    found = []
    for _ in range(world["steps"]):
        train(world, engine, engine.global_steps, 1)
        engine.save_checkpoint(world["root"], client_state={"epoch": engine.global_steps * 10})
        found.append(digests(engine))
    pipe.send({"loads": loads, "saved": found, "steps": engine.global_steps})
    if plugged is not None:
        plugged.close()


def _alone(world: Mapping[str, Any], pipe: Any) -> None:
    """List the boxes on one rank while no other takes part, by way of the calls of a save."""
    import torch.distributed as dist

    from holdfast.flash.trainer.leaves import Leaves
    from holdfast.integrations.deepspeed import EngineShards

    engine = engine_of(world)
    train(world, engine, 0, 1)
    total = sum(getattr(one, "ds_numel", one.numel()) for one in engine.module.parameters())
    for rank in range(world["world"]):
        if rank == dist.get_rank():
            leaves = Leaves()
            EngineShards(engine).collect(leaves)
            boxes = [leaf for leaf in leaves.tensors if leaf.box is not None and leaf.stored]
            count = sum(leaf.tensor.numel() for leaf in boxes if not leaf.name.endswith(".step"))
            pipe.send({"count": count, "total": total})
        dist.barrier()


def _half(world: Mapping[str, Any], pipe: Any) -> None:
    """Save between the micro-batches of a step."""
    from holdfast.flash.trainer.leaves import StateError
    from holdfast.integrations.deepspeed import Checkpointer

    engine = engine_of(world)
    flash = Checkpointer(world["root"], engine)
    first, _ = batches(world, 0)
    engine.backward(loss_of(engine, first))
    engine.step()
    try:
        flash.save(1)
    except StateError as error:
        pipe.send({"refused": str(error)})
    pipe.send({"latest": flash.latest()})
    flash.close()


def _torch(world: Mapping[str, Any], pipe: Any) -> None:
    """Train with DDP or FSDP2 from what is there, if anything is; save at the end."""
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    import holdfast

    model = model_of({**world, "seed": world.get("seed", 3)})
    model.to(getattr(torch, world.get("cast", "float32")))
    if world["wrapper"] == "fsdp":
        fully_shard(model)
    wrapped = DistributedDataParallel(model) if world["wrapper"] == "ddp" else model
    optimizer = optimizer_of(world, model)
    flash = holdfast.Checkpointer(world["root"], model=wrapped, optimizer=optimizer)
    start = flash.load()
    if start:
        pipe.send({"loaded": _torch_digests(model, optimizer)})
    losses = []
    for step in range(start, start + world["steps"]):
        optimizer.zero_grad()
        loss = loss_of(
            wrapped, *(rows.to(model.head.weight.dtype) for rows in batches(world, step))
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if world.get("save"):
        flash.save(start + world["steps"])
        flash.wait()
    pipe.send({"start": start, "losses": losses, "digests": _torch_digests(model, optimizer)})
    flash.close()
    torch.distributed.barrier()


def _torch_digests(model: Any, optimizer: Any) -> dict[str, str]:
    """Return a hash of every whole tensor, under the names of `digests`."""
    found = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key in ("exp_avg", "exp_avg_sq"):
            if key in optimizer.state.get(parameter, ()):
                found[f"optimizer.state.{name}.{key}"] = optimizer.state[parameter][key]
    whole = {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in found.items()
    }
    return {name: _hash(value, tuple(value.shape)) for name, value in whole.items()}


def weights(engine: Any) -> str:
    """Return a hash of this rank's own masters and moments; no collective."""
    from holdfast.integrations.deepspeed.partitions import flats_of

    found = hashlib.sha256()
    state = engine.optimizer.optimizer.state
    for flat in flats_of(engine):
        found.update(flat.master.detach().numpy().tobytes())
        for key, value in sorted((state.get(flat.master) or {}).items()):
            found.update(f"{key} {value}".encode())
    found.update(json.dumps(settings(engine)).encode())
    return found.hexdigest()


if __name__ == "__main__":
    import deepspeed
    import deepspeed.runtime.zero.muon.muon_optimizer  # torch's compiler: two seconds, in each rank

    # Compiled at the first use for a minute, and of no use here: gloo reduces small tensors.
    deepspeed.ops.__compatible_ops__["shm_comm"] = False
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    from checkpoints import deepspeed_calls, deepspeed_pipeline

    serve(
        {
            "save": _save,
            "load": _load,
            "calls": _calls,
            "script": deepspeed_calls.run,
            "half": _half,
            "alone": _alone,
            "torch": _torch,
            "pipe": deepspeed_pipeline.run,
            "read": deepspeed_pipeline.read,
        }
    )
