"""Worlds that train with the flash checkpoint: one process imports torch, then forks their ranks.

Run as a script. It reads one JSON line per world from standard input and answers each with a line:
what every rank started from, and hashes of the whole state as loaded and as saved. The hashes do
not depend on how the state is sharded.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from checkpoints import flash_large, flash_matrix, flash_memory, flash_odd_shapes, flash_overlap
from checkpoints.counted_saves import counted
from checkpoints.flash_models import backward, evaluate, model_of

SUPPORT = Path(__file__).parents[1]
Jobs = Mapping[str, Callable[[Mapping[str, Any], Any], None]]
"""Name of a job → the function that a rank runs: (world, pipe to the test)."""


class Worlds:
    """The script as seen by a test."""

    script = __file__

    def __init__(self, **environment: str) -> None:
        """Start it."""
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SUPPORT), **environment}
        self._process = subprocess.Popen(
            [sys.executable, self.script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **own},
        )

    def run(self, **world: Any) -> list[dict[str, Any]]:
        """Run a world to its end; return what each rank says. Fails when one fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(world) + "\n")
        self._process.stdin.flush()
        answers: list[dict[str, Any]] = json.loads(self._process.stdout.readline())
        errors = [answer["error"] for answer in answers if "error" in answer]
        assert not errors or world.get("may_fail"), errors[0]
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        if self._process.stdout is not None:
            self._process.stdout.close()


class Keeping:
    """A keeper that outlives its trainers, as an agent's does."""

    def __init__(self, folder: Path) -> None:
        """Start it and wait until it listens."""
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


def serve(jobs: Jobs) -> None:
    """Run the worlds that standard input names, each with its job."""
    import torch
    import torch._dynamo  # what the first optimizer imports: a second, in each rank
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel

    import holdfast.flash.checkpointer  # noqa: F401 - forked ranks find it imported

    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a framework's own prints would stand between the answers
    context = multiprocessing.get_context("fork")
    for line in sys.stdin:
        world = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            pairs = [context.Pipe(duplex=False) for _ in range(world["world"])]
            ranks = [
                context.Process(target=_rank, args=(jobs, rank, world, folder, pairs[rank][1]))
                for rank in range(world["world"])
            ]
            for rank in ranks:
                rank.start()
            for _, end in pairs:
                end.close()
            answers = [_answer(begin) for begin, _ in pairs]
            for rank in ranks:
                rank.join()
        out.write(json.dumps(answers) + "\n")
        out.flush()


def _answer(pipe: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        while True:
            found |= pipe.recv()
    except EOFError:
        return found


def _rank(jobs: Jobs, rank: int, world: Mapping[str, Any], folder: str, pipe: Any) -> None:
    import torch.distributed as dist

    count = world["world"]
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "HOLDFAST_ROUND": str(world.get("round", 0)),
        "HOLDFAST_ARENA": world.get("arena", ""),
    }
    try:
        if world["kind"] != "plain":
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count
            )
        jobs[world.get("job", "train")](world, pipe)
    except Exception:  # noqa: BLE001 - it is what the test is to see
        pipe.send({"error": traceback.format_exc()})
    finally:
        pipe.close()
        os._exit(0)


def _train(world: Mapping[str, Any], pipe: Any) -> None:  # noqa: PLR0915 - one training's course
    import torch

    from holdfast.flash.checkpointer import Checkpointer
    from holdfast.flash.trainer.restore import RestoreError

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
        flash.save(step + 1, durable=world["durable"])
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
    import torch
    import torch.distributed.checkpoint as dcp

    from holdfast.flash.trainer.state_dict import parameter_names, unwrap

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
        """Take whether it accepts a state."""
        self._refuses = refuses

    def state_dict(self) -> dict[str, int]:
        """Return one number."""
        return {"epoch": 3}

    def load_state_dict(self, _: dict[str, int]) -> None:
        """Refuse, or take it."""
        if self._refuses:
            raise KeyError("milestones")


class Taken:
    """One rank's share of the data. Another world deals it out anew."""

    def __init__(self, rank: int) -> None:
        """Take ten numbers that no other rank has."""
        self.numbers = list(range(10 * rank, 10 * rank + 10))

    def state_dict(self) -> dict[str, list[int]]:
        """Return them."""
        return {"numbers": self.numbers}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        """Take those of a state."""
        self.numbers = state["numbers"]

    def reshard(self, states: list[dict[str, list[int]]], rank: int, world: int) -> dict[str, Any]:
        """Return every so many of all, in order."""
        numbers = sorted(number for one in states for number in one["numbers"])
        return {"numbers": numbers[rank::world]}


def digest(model: Any, optimizer: Any, scheduler: Any = None) -> str:
    """Return a hash of all values, whole tensors by name."""
    from holdfast.flash.trainer.state_dict import parameter_names, unwrap

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
