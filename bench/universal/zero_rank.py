"""One rank of a DeepSpeed engine: its training, and DeepSpeed's own ways. Run by `worlds.run`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
warnings.simplefilter("ignore")

import deepspeed  # noqa: E402 - the accelerator is chosen at its import
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from bench.universal import acts, rank  # noqa: E402
from bench.universal import results as r  # noqa: E402
from holdfast.integrations.deepspeed import EngineShards  # noqa: E402


class Stack(torch.nn.Module):
    """Square layers, one after another."""

    def __init__(self, width: int, layers: int) -> None:
        """Make them."""
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Return the loss of an input that is its own target."""
        for layer in self.layers:
            value = torch.tanh(layer(value))
        return value.square().mean()


def engine_of(options: Any) -> Any:
    """Return an engine of the wanted stage."""
    torch.manual_seed(0)
    model = Stack(options.width, options.layers)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {
            "stage": options.stage,
            "reduce_bucket_size": 2**22,
            "stage3_param_persistence_threshold": 0,
        },
        "bf16": {"enabled": True},
        "checkpoint": {"load_universal": options.act == "universal"},
        "steps_per_print": 10**9,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def step(engine: Any, width: int) -> None:
    """Train one step."""
    dtype = next(engine.module.parameters()).dtype
    engine.backward(engine(torch.ones(1, width, dtype=dtype)))
    engine.step()


def weights(engine: Any) -> list[torch.Tensor]:
    """Return the weights that this rank has."""
    return [getattr(one, "ds_tensor", one).detach() for one in engine.module.parameters()]


def subject_of(engine: Any, options: Any) -> acts.Subject:
    """Return the engine as what the acts need."""

    def save(folder: Path) -> rank.Way:
        return {r.ENGINE: partial(engine.save_checkpoint, folder / "native")}

    def load(folder: Path) -> rank.Way:
        return {r.ENGINE: partial(engine.load_checkpoint, folder / "native")}

    return acts.Subject(
        layout=f"ZeRO-{options.stage}, {dist.get_world_size()} ranks",
        shards=partial(EngineShards, engine),
        step=partial(step, engine, options.width),
        weights=partial(weights, engine),
        saves={"native": save},
        loads={"native": load},
        reshapes={},
        parts={},
    )


def universal(engine: Any, subject: acts.Subject, options: Any) -> None:
    """Load in another world by DeepSpeed's own route."""
    subject.step()
    log = rank.Log(options.lines, options.state, subject.shard)
    source, target = options.folder / "native", options.folder / "universal"
    tag = (source / "latest").read_text().strip()
    words = ["-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    words += ["--input_folder", str(source / tag), "--output_folder", str(target / tag)]

    def both() -> None:
        if dist.get_rank() == 0:
            subprocess.run([sys.executable, *words], check=True, capture_output=True)
            (target / "latest_universal").write_text(tag)
            (target / "latest").write_text(tag)
        dist.barrier()
        engine.load_checkpoint(target, tag=tag)

    for turn in range(acts.WARM_UP, options.turns):
        if dist.get_rank() == 0:
            shutil.rmtree(target, ignore_errors=True)
        log.measure(r.RESHAPE + subject.layout, turn, {r.UNIVERSAL: both})
    if dist.get_rank() == 0:
        shutil.rmtree(target, ignore_errors=True)


def main() -> None:
    """Do what the command line says."""
    options = rank.options()
    torch.set_num_threads(1)
    # Compiled for a minute at its first use, and of no use here: gloo reduces small tensors.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    engine = engine_of(options)
    subject = subject_of(engine, options)
    if options.act == "universal":
        universal(engine, subject, options)
    else:
        acts.ACTS[options.act](subject, options.folder, options)
    dist.barrier()


if __name__ == "__main__":
    main()
