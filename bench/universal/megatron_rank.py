"""One rank of a Megatron training on the CPU, and Megatron's own ways. Run by `worlds.run`.

Model, training and the CPU in CUDA's place are those of the tests (`tests/support`).
"""

from __future__ import annotations

import itertools
import logging
import shutil
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Final

import megatron_worlds.preloaded  # noqa: F401 - the CPU in CUDA's place, before torch

logging.disable(logging.WARNING)  # one for each draw: CPU generators in CUDA's place
warnings.simplefilter("ignore")

import torch  # noqa: E402 - after the shim
import torch.distributed as dist  # noqa: E402

from bench.universal import acts, rank  # noqa: E402
from bench.universal import results as r  # noqa: E402
from holdfast.integrations.megatron import MegatronShards  # noqa: E402
from megatron_worlds import gpt  # noqa: E402

SQUARES: Final = 7
"""Weights of a layer of `gpt`, in squares of its width."""
_SHARDINGS: Final = {r.BUCKETS: "dp_reshardable", r.RESHARDABLE: "fully_reshardable"}


def weights(training: gpt.Training) -> list[torch.Tensor]:
    """Return the weights that this rank has."""
    return [one.detach() for chunk in training.chunks for one in chunk.parameters()]


def gather(training: gpt.Training, folder: Path) -> rank.Way:
    """Return Megatron's `save_parameter_state` in two calls: gather over gloo, then write."""
    found: list[tuple[Any, Any]] = []

    def gathered() -> None:
        found[:] = [
            (one, one.get_parameter_state_dp_zero())
            for one in training.optimizer.chained_optimizers
        ]

    def written() -> None:
        if found[0][0].data_parallel_group.rank() == 0:
            torch.save([state for _, state in found], folder / f"gather_{dist.get_rank()}.pt")
        found.clear()

    return {r.GATHERED: gathered, r.GATHER: written}


def _sharded(training: gpt.Training, system: str, *, loading: bool) -> dict[str, Any]:
    kind = _SHARDINGS[system]
    metadata = {"distrib_optim_sharding_type": kind, "chained_optim_avoid_prefix": True}
    (chunk,) = training.chunks
    model = chunk.module.sharded_state_dict(metadata=metadata)
    optimizer = training.optimizer.sharded_state_dict(
        chunk.module.sharded_state_dict(metadata=metadata), is_loading=loading, metadata=metadata
    )
    return {"model": model, "optimizer": optimizer}


def _native(folder: Path, system: str) -> Path:
    return folder / _SHARDINGS[system]


def native_save(training: gpt.Training, system: str, folder: Path) -> rank.Way:
    """Save as Megatron's training does, replicas dealt out to the data parallel ranks."""
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
    from megatron.core.dist_checkpointing.strategies.fully_parallel import (
        FullyParallelSaveStrategyWrapper,
    )

    target = _native(folder, system)
    if dist.get_rank() == 0:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
    dist.barrier()

    def save() -> None:
        state = _sharded(training, system, loading=False)
        strategy = FullyParallelSaveStrategyWrapper(
            get_default_save_sharded_strategy(), parallel_state.get_data_parallel_group()
        )
        dist_checkpointing.save(state, target, strategy)

    return {system: save}


def native_load(training: gpt.Training, system: str, folder: Path) -> rank.Way:
    """Load as Megatron's training does by default: each rank reads what it needs."""
    from megatron.core import dist_checkpointing

    def load() -> None:
        state = _sharded(training, system, loading=True)
        found = dist_checkpointing.load(state, _native(folder, system))
        training.chunks[0].module.load_state_dict(found["model"])
        training.optimizer.load_state_dict(found["optimizer"])

    return {system: load}


def subject_of(training: gpt.Training) -> acts.Subject:
    """Return the training as what the acts need."""
    setup = training.setup
    numbers = itertools.count()
    return acts.Subject(
        layout=layout(setup.tensor, dist.get_world_size()),
        shards=lambda: MegatronShards(
            training.chunks, training.optimizer, {"scheduler": training.scheduler}
        ),
        step=lambda: gpt.step(training, next(numbers)),
        weights=partial(weights, training),
        saves={
            "gather": partial(gather, training),
            "buckets": partial(native_save, training, r.BUCKETS),
            "reshardable": partial(native_save, training, r.RESHARDABLE),
        },
        loads={
            "buckets": partial(native_load, training, r.BUCKETS),
            "reshardable": partial(native_load, training, r.RESHARDABLE),
        },
        reshapes={"reshardable": partial(native_load, training, r.RESHARDABLE)},
        parts={r.SYNC: partial(training.chunks[0].start_param_sync, force_sync=True)},
    )


def layout(tensor: int, ranks: int) -> str:
    """Return a world in words."""
    return f"Megatron, tensor {tensor} × data {ranks // tensor}"


def main() -> None:
    """Do what the command line says."""
    options = rank.options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    setup = gpt.Setup(
        tensor=options.tensor,
        precision="bf16",
        optimizer="fused",  # as on a GPU; Megatron cannot load fully_reshardable with torch's Adam
        hidden=options.width,
        layers=max(1, options.layers // SQUARES),
    )
    training = gpt.build(setup, seed=1)
    acts.ACTS[options.act](subject_of(training), options.folder, options)
    dist.barrier()


if __name__ == "__main__":
    main()
