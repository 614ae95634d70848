"""Worlds that train with the flash checkpoint, run as a script (`forked_worlds`).

Ranks say what they started from, and hashes of the whole state as loaded and as saved. The hashes
do not depend on how the state is sharded.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed.checkpoint as dcp

from checkpoints import flash_large, flash_matrix, flash_memory, flash_odd_shapes, flash_overlap
from checkpoints.counted_saves import counted
from checkpoints.flash_models import backward, evaluate, model_of
from checkpoints.forked_worlds import ForkedWorlds, Jobs, serve
from holdfast.flash.checkpointer import Checkpointer
from holdfast.flash.trainer.restore import RestoreError
from holdfast.flash.trainer.state_dict import parameter_names, unwrap


class Worlds(ForkedWorlds):
    """The script as seen by a test."""

    script = __file__


class Keeping:
    """A keeper that outlives its trainers, as an agent's does."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "keeper")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.flash.server.main", "--listen", self.path]
        )
        while not Path(self.path).exists():
            assert self._process.poll() is None, "the keeper ended"
            os.sched_yield()

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=60)


def _train(world: Mapping[str, Any], pipe: Any) -> None:  # noqa: PLR0915 - one training's course
    torch.manual_seed(world.get("seed", 0))
    model = model_of(world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    taken = Taken(int(os.environ["RANK"]))
    flash = Checkpointer(
        world["root"],
        model=model,
        optimizer=optimizer,
        extra={"scheduler": scheduler, **_misfit(world)},
        per_rank={"taken": taken} if world.get("takes") else None,
        overlap=world.get("overlap", False),
    )
    if world.get("stock"):
        _read_by_dcp(world, model, optimizer)
        pipe.send({"weights": digest(model, optimizer)})
        return
    try:
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            start = flash.load()
    except RestoreError as error:
        pipe.send({"refused": str(error), "weights": digest(model, optimizer)})
        return
    loaded = digest(model, optimizer, scheduler)
    pipe.send({"start": start, "loaded": loaded, "weights": digest(model, optimizer)})
    pipe.send({"notes": [str(note.message) for note in notes]})
    pipe.send({"taken": taken.numbers})
    if start == 0:
        torch.manual_seed(1000 + int(os.environ["RANK"]))
    inputs = torch.randn(8, 1024, generator=torch.Generator().manual_seed(5))
    for step in range(start, start + world["steps"]):
        optimizer.zero_grad()
        backward(world, model, inputs)
        optimizer.step()
        scheduler.step()
        if world.get("evaluate"):
            evaluate(model, inputs)
        flash.save(step + 1, durable=world.get("durable", True))
    if world.get("lonely") and os.environ["RANK"] == "0":
        for step in range(3):
            flash.save(1000 + step, durable=False)
    flash.wait()
    if world.get("count"):
        pipe.send({"counted": counted(flash, 2000, world["count"])})
    saved = digest(model, optimizer, scheduler)
    pipe.send({"saved weights": digest(model, optimizer)})
    random_numbers = torch.rand(3).tolist()
    pipe.send({"saved": saved, "random": random_numbers, "lr": scheduler.get_last_lr()})
    if world.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    flash.close()


def _read_by_dcp(world: Mapping[str, Any], model: Any, optimizer: Any) -> None:
    """Fill the state by torch alone from the step `stock`, as somebody without Holdfast does."""
    names, state = parameter_names({"": model}, ""), {}
    for parameter in optimizer.param_groups[0]["params"]:
        fresh = {key: torch.zeros_like(parameter.detach()) for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = state[names[id(parameter)]] = {
            "step": torch.tensor(0.0),
            **fresh,
        }
    target = {"model": dict(unwrap(model).state_dict()), "optimizer": {"state": state}}
    folder = Path(world["root"]) / f"step_{world['stock']}"
    dcp.load(target, checkpoint_id=folder, no_dist=world["kind"] == "plain")


def _misfit(world: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the last rank has besides: nothing, what nobody saved, or what it refuses."""
    last = int(os.environ["RANK"]) == world["world"] - 1
    kind = world.get("misfit")
    if kind in ("picky", "tame"):
        return {"odd": Picky(refuses=last and kind == "picky")}
    return {"odd": 1} if kind == "more" and last else {}


class Picky:
    """A scheduler that may be of another version."""

    def __init__(self, *, refuses: bool) -> None:
        self._refuses = refuses

    def state_dict(self) -> dict[str, int]:
        return {"epoch": 3}

    def load_state_dict(self, _: dict[str, int]) -> None:
        if self._refuses:
            raise KeyError("milestones")


class Taken:
    """One rank's share of the data. Another world deals it out anew."""

    def __init__(self, rank: int) -> None:
        self.numbers = list(range(10 * rank, 10 * rank + 10))

    def state_dict(self) -> dict[str, list[int]]:
        return {"numbers": self.numbers}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self.numbers = state["numbers"]

    def reshard(self, states: list[dict[str, list[int]]], rank: int, world: int) -> dict[str, Any]:
        """Return every so many of all, in order."""
        numbers = sorted(number for one in states for number in one["numbers"])
        return {"numbers": numbers[rank::world]}


def digest(model: Any, optimizer: Any, scheduler: Any = None) -> str:
    """Return a hash of all values, whole tensors by name."""
    found = hashlib.sha256()
    names = parameter_names({"": model}, "")
    tensors = dict(unwrap(model).state_dict())
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            tensors[f"{names[id(parameter)]}/{key}"] = value
    for name, tensor in sorted(tensors.items()):
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found.update(name.encode() + whole.detach().contiguous().numpy().tobytes())
    if scheduler is not None:
        found.update(json.dumps(scheduler.state_dict(), sort_keys=True, default=str).encode())
    return found.hexdigest()


_JOBS: Jobs = {
    "train": _train,
    "save": lambda world, pipe: flash_matrix.save(world, pipe, digest),
    "overlap": flash_overlap.run,
    "odd shapes": flash_odd_shapes.run,
    "large": flash_large.run,
    "memory": flash_memory.run,
    "load": lambda world, pipe: flash_matrix.load(world, pipe, digest),
}


if __name__ == "__main__":
    serve(_JOBS)
