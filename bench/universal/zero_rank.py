"""One rank of a DeepSpeed engine: saves, loads and reshapes its state in each way, in turns.

Run by `worlds.run`. The steps of an engine before the save give its optimizer state.
"""

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

import holdfast  # noqa: E402
from bench.universal import rank  # noqa: E402
from bench.universal.results import COPY, FLASH  # noqa: E402
from holdfast.flash.trainer.leaves import Leaves  # noqa: E402
from holdfast.integrations.deepspeed import EngineShards  # noqa: E402

NATIVE = "engine.save_checkpoint / load_checkpoint"
TORCH = "torch.save / torch.load of each rank's shard"
UNIVERSAL = "ds_to_universal, then load_checkpoint"


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


def engine_of(options: Any, *, universal: bool) -> Any:
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
        "checkpoint": {"load_universal": universal},
        "steps_per_print": 10**9,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def step(engine: Any) -> None:
    """Train one step."""
    device_type = next(engine.module.parameters()).dtype
    engine.backward(engine(torch.ones(1, OPTIONS.width, dtype=device_type)))
    engine.step()


def shard_of(engine: Any) -> list[torch.Tensor]:
    """Return the tensors of this rank's shard."""
    leaves = Leaves()
    EngineShards(engine).collect(leaves)
    return [leaf.tensor for leaf in leaves.tensors if leaf.stored]


def save(engine: Any, folder: Path, log: rank.Log) -> None:
    """Save in each way, in turns; the last of each stays."""
    step(engine)
    own, file = shard_of(engine), folder / "torch" / f"{dist.get_rank()}.pt"
    file.parent.mkdir(exist_ok=True)
    copy = rank.Copy(own)
    flash = holdfast.Checkpointer(folder / "flash", shards=EngineShards(engine))
    flash.prepare()
    flash.save(1)
    flash.wait()
    for turn in range(OPTIONS.turns):
        step(engine)
        log.add("save", COPY, turn, rank.timed(copy))
        with rank.counted() as count:
            seconds = rank.timed(partial(flash.save, turn + 2))
        log.add("save", FLASH, turn, seconds, count() - 2)  # those of `timed`
        flash.wait()
        log.add("save", TORCH, turn, rank.timed(lambda: torch.save(own, file)))
        log.add("save", NATIVE, turn, rank.timed(lambda: engine.save_checkpoint(folder / "native")))
    flash.close()


def load(engine: Any, folder: Path, log: rank.Log) -> None:
    """Load in the world that saved, from the page cache, in each way."""
    step(engine)  # so that there is memory for the optimizer's state
    own, file = shard_of(engine), folder / "torch" / f"{dist.get_rank()}.pt"

    def from_torch() -> None:
        for to, values in zip(own, torch.load(file), strict=True):
            to.copy_(values)

    for turn in range(OPTIONS.turns):
        with holdfast.Checkpointer(folder / "flash", shards=EngineShards(engine)) as flash:
            log.add("load, same world", FLASH, turn, rank.timed(flash.load))
        log.add("load, same world", TORCH, turn, rank.timed(from_torch))
        seconds = rank.timed(lambda: engine.load_checkpoint(folder / "native"))
        log.add("load, same world", NATIVE, turn, seconds)


def reshape(engine: Any, folder: Path, log: rank.Log) -> None:
    """Load in another world."""
    step(engine)
    for turn in range(OPTIONS.turns):
        with holdfast.Checkpointer(folder / "flash", shards=EngineShards(engine)) as flash:
            log.add(f"load as {here()}", FLASH, turn, rank.timed(flash.load))


def universal(engine: Any, folder: Path, log: rank.Log) -> None:
    """Load in another world by DeepSpeed's own route."""
    step(engine)
    source, target = folder / "native", folder / "universal"
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

    for turn in range(OPTIONS.turns):
        if dist.get_rank() == 0:
            shutil.rmtree(target, ignore_errors=True)
        log.add(f"load as {here()}", UNIVERSAL, turn, rank.timed(both))


def here() -> str:
    """Return the present world in words."""
    return f"ZeRO-{OPTIONS.stage}, {dist.get_world_size()} ranks"


ACTS = {"save": save, "load": load, "reshape": reshape, "universal": universal}


def main() -> None:
    """Do what the command line says."""
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    engine = engine_of(OPTIONS, universal=OPTIONS.act == "universal")
    parameters = sum(getattr(one, "ds_numel", one.numel()) for one in engine.module.parameters())
    log = rank.Log(OPTIONS.lines, OPTIONS.case, parameters * 12 / 2**20)
    ACTS[OPTIONS.act](engine, OPTIONS.folder, log)
    dist.barrier()


if __name__ == "__main__":
    _PARSER = rank.parser()
    _PARSER.add_argument("--stage", type=int, required=True)
    _PARSER.add_argument("--case", required=True, help="the world that saves, in words")
    _PARSER.add_argument("--local_rank", type=int, default=0)
    OPTIONS = _PARSER.parse_args()
    main()
