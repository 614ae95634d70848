"""What a rank of a Megatron world does, by name.

Each job tells through a pipe what a test compares. Does not belong here: model and training
(`gpt`), the start of the ranks (`worlds`).
"""

from __future__ import annotations

import argparse
import importlib
import io
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from megatron_worlds.gpt import Setup, Training, build, digest, step, weights


def _built(world: Mapping[str, Any]) -> Training:
    return build(Setup(**world.get("setup", {})), world.get("seed", 1))


def _train(world: Mapping[str, Any], pipe: Any) -> None:
    """Load, tell the state, train to step `until`, saving at `save_at`."""
    from holdfast import Checkpointer, RestoreError
    from holdfast.integrations.megatron import MegatronShards

    training = _built(world)
    scales = _scaled(training, world["scales"]) if world.get("scales") else {}
    objects = {"opt_param_scheduler": training.scheduler}
    shards = MegatronShards(
        training.chunks, training.optimizer, objects, constants=world.get("constants")
    )
    flash = Checkpointer(world["root"], shards=shards, overlap=world.get("overlap", False))
    before = weights(training)
    try:
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            start = flash.load(partial=world.get("partial", False))
    except RestoreError as error:
        pipe.send({"refused": str(error), "untouched": weights(training) == before})
        return
    pipe.send({"start": start, "notes": [str(note.message) for note in notes]})
    if start:
        pipe.send({"loaded": digest(training), "weights": weights(training)})
        pipe.send({"restored": scales})
    pipe.send({"drawn": _drawn() if world.get("draw") else None})
    _go_on(world, training, flash, start, pipe)
    flash.close()


def _go_on(world: Mapping[str, Any], training: Training, flash: Any, start: int, pipe: Any) -> None:
    """Train from a step on, and save."""
    import torch

    losses = []
    for number in range(start, world.get("until", start)):
        losses.append(step(training, number))
        if number + 1 in world.get("save_at", ()):
            flash.save(number + 1)
            flash.wait()
            pipe.send({"saved": digest(training), "saved weights": weights(training)})
    lr = [group["lr"] for group in training.optimizer.param_groups]
    pipe.send({"losses": losses, "final": digest(training) if losses else {}, "lr": lr})
    pipe.send({"numbers": torch.rand(2).tolist()})


def _parted(world: Mapping[str, Any], pipe: Any) -> None:
    """Save to storage after the last rank has changed its own ranges of a global tensor."""
    import torch.distributed as dist

    from holdfast import Checkpointer, CheckpointError
    from holdfast.flash.trainer.leaves import Leaves
    from holdfast.integrations.megatron import MegatronShards

    training = _built(world)
    step(training, 0)
    shards = MegatronShards(training.chunks, training.optimizer)
    if dist.get_rank() == dist.get_world_size() - 1:
        leaves = Leaves()
        shards.collect(leaves)
        for leaf in leaves.tensors:
            if leaf.name == world["part"]:
                leaf.tensor.add_(0.1)
    with Checkpointer(world["root"], shards=shards) as flash:
        flash.save(1)
        refused = ""
        try:
            flash.wait(1)
        except CheckpointError as error:
            refused = str(error)
        pipe.send({"refused": refused})


def _scaled(training: Training, begin: str) -> dict[str, str]:
    """Give modules an extra state as Transformer Engine does, bytes in a file; return all by key.

    A key has the layer's number in the whole model.
    """
    found: dict[str, str] = {}
    for chunk in training.chunks:
        for layer in (one for one in chunk.modules() if hasattr(one, "layer_number")):
            if hasattr(layer, "mlp"):
                key = f"{layer.layer_number}"
                found[key] = f"{begin} {key}"
                linear: Any = layer.mlp.linear_fc1
                linear.get_extra_state = partial(_as_file, found, key)
                linear.set_extra_state = partial(_of_file, found, key)
    return found


def _as_file(found: dict[str, str], key: str) -> io.BytesIO:
    return io.BytesIO(found[key].encode())


def _of_file(found: dict[str, str], key: str, file: io.BytesIO) -> None:
    found[key] = file.getvalue().decode()


def _drawn() -> dict[str, Any]:
    """Return this rank's place, and numbers from its generators."""
    import torch
    from megatron.core import parallel_state as mpu
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    place = mpu.get_tensor_model_parallel_rank(), mpu.get_pipeline_model_parallel_rank()
    default = torch.rand(3).tolist()
    with get_cuda_rng_tracker().fork():
        inside = torch.rand(3).tolist()
    return {"place": place, "default": default, "inside": inside}


def _alone(world: Mapping[str, Any], pipe: Any) -> None:
    """Rank 0 lists its state while the others do nothing at all; then each tells its boxes."""
    import torch.distributed as dist

    from holdfast.flash.trainer.leaves import Leaves
    from holdfast.integrations.megatron import MegatronShards

    training = _built(world)
    step(training, 0)
    shards = MegatronShards(training.chunks, training.optimizer)
    leaves = Leaves()
    if dist.get_rank() == 0:
        shards.collect(leaves)
    dist.barrier()
    if dist.get_rank():
        shards.collect(leaves)
    own = _memory(training)
    boxes = [
        (leaf.name, leaf.box.shape, leaf.box.offsets, tuple(leaf.tensor.shape))
        for leaf in leaves.tensors
        if leaf.stored and leaf.box is not None
    ]
    strangers = [one.name for one in leaves.tensors if _storage(one.tensor) not in own]
    pipe.send({"boxes": boxes, "strangers": strangers})


def _memory(training: Training) -> set[int]:
    """Return the memory of all masters, moments and weights."""
    tensors = [each for chunk in training.chunks for each in chunk.parameters()]
    for one in getattr(training.optimizer, "chained_optimizers", [training.optimizer]):
        for group in one.optimizer.param_groups:
            tensors += group["params"]
        for state in one.optimizer.state.values():
            tensors += [value for value in state.values() if hasattr(value, "dim")]
    return {_storage(one) for one in tensors}


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _evaluate(world: Mapping[str, Any], pipe: Any) -> None:
    """Load the weights without an optimizer."""
    from holdfast import Checkpointer
    from holdfast.integrations.megatron import MegatronShards

    training = _built(world)
    with Checkpointer(world["root"], shards=MegatronShards(training.chunks)) as flash:
        pipe.send({"start": flash.load(), "weights": weights(training)})


def _drop_in(world: Mapping[str, Any], pipe: Any) -> None:
    """Train as Megatron's training does, with the two functions in place of Megatron's."""
    from holdfast import RestoreError
    from holdfast.integrations.megatron import checkpointing, load_checkpoint, save_checkpoint

    training = _built(world)
    args = use_arguments(save=str(Path(world["root"])), **world.get("args", {}))
    state = training.chunks, training.optimizer, training.scheduler
    try:
        start, operations = load_checkpoint(*state, strict=world.get("strict", True))
    except (RestoreError, ValueError, FileNotFoundError) as error:
        pipe.send({"refused": str(error)})
        return
    pipe.send({"start": start, "operations": operations, "loaded": weights(training)})
    pipe.send({"samples": args.consumed_train_samples, "drawn": _drawn()})
    losses = []
    for number in range(start, world.get("until", start)):
        losses.append(step(training, number))
        args.consumed_train_samples += 4
        if number + 1 in world.get("save_at", ()):
            save_checkpoint(number + 1, *state, 1e9 * (number + 1), None, non_persistent_ckpt=False)
    pipe.send({"losses": losses, "weights": weights(training)})
    checkpointing.finish()


def use_arguments(**given: Any) -> argparse.Namespace:
    """Return Megatron's global arguments, with these set.

    PyPI's package below 0.19 has no `megatron.training`, and above it needs more than is installed
    here: `get_args` is then put where Megatron has it.
    """
    values = {
        "load": given.get("save"),
        "finetune": False,
        "no_load_optim": None,
        "no_load_rng": None,
        "no_save_optim": None,
        "num_layers": 4,
        "num_attention_heads": 8,
        "consumed_train_samples": 0,
        "skipped_train_samples": 0,
        "consumed_valid_samples": 0,
    }
    args = argparse.Namespace(**{**values, **given})
    try:
        module: Any = importlib.import_module("megatron.training.global_vars")
        module._GLOBAL_ARGS = args
    except ImportError:
        module = types.ModuleType("megatron.training.global_vars")
        module.get_args = lambda: args
        package = types.ModuleType("megatron.training")
        sys.modules |= {package.__name__: package, module.__name__: module}
    return args


def _elsewhere(module: str, world: Mapping[str, Any], pipe: Any) -> None:
    """Do the world's `call` of a module."""
    importlib.import_module(f"megatron_worlds.{module}").CALLS[world["call"]](world, pipe)


def _script(world: Mapping[str, Any], pipe: Any) -> None:
    """Make the calls that a test lists."""
    from megatron_worlds import calls

    calls.run(world, pipe)


JOBS: dict[str, Callable[[Mapping[str, Any], Any], None]] = {
    "train": _train,
    "alone": _alone,
    "evaluate": _evaluate,
    "parted": _parted,
    "drop-in": _drop_in,
    "script": _script,
    "replicas": partial(_elsewhere, "replicas"),
    "by time": partial(_elsewhere, "by_time"),
}
