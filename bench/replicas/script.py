"""The training script of each way that is killed: replicas, a world that restarts, torchft.

All train the same model on the same micro-batches, so many in each step of the whole job. Belongs
here: the loops, one for each way, as its manual has them. Does not belong here: who starts them
(`systems`), and what their log means (`figures`).

Run by path, also by the Python of another environment: it needs torch, and of Holdfast only what
its own ways use. Computation of a micro-batch is small, then slept: two cores carry four ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path

from bench.recovery import script as base

MICRO_BATCHES: Final = 12
"""Of a step in the whole job by default: those of a lost replica can be shared by three."""
ROWS: Final = 4
"""Of a micro-batch."""
_WIDER: Final = 16 * base.VOCABULARY
_LOGITS: Final = base.VOCABULARY
_LAYER_BYTES: Final = 8 * base.VOCABULARY * _WIDER
"""Of a layer that makes the model larger, without its biases."""
_TORCHFT_LIMIT: Final = timedelta(seconds=30)
"""Of its collectives and quorums, as its own example has it."""


def main() -> None:
    """Train until somebody ends this process."""
    options = settings()
    log = base.StepLog(options.log_dir)
    log.write("started", at=base.STARTED)
    import torch

    torch.set_num_threads(1)
    LOOPS[options.loop](options, log)


def settings() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", type=Path, required=True)
    parser.add_argument("--saves-dir", type=Path, required=True)
    parser.add_argument("--restore", choices=["torch", "dcp", "flash"], default="torch")
    parser.add_argument("--collective-timeout", type=float, default=None, help="seconds")
    parser.add_argument("--loop", choices=LOOPS, required=True)
    parser.add_argument("--shards", type=int, default=1, help="ranks of a replica")
    parser.add_argument("--pace-ms", type=float, default=4.0, help="slept in each micro-batch")
    parser.add_argument("--micro-batches", type=int, default=MICRO_BATCHES, help="of a step")
    parser.add_argument("--model-mb", type=float, default=0.0, help="more weights, in MB")
    return parser.parse_args()


def model_of(extra_mb: float) -> Any:
    """Return the model of `bench.recovery`, 1.1 MB, with more layers behind its head.

    These see the mean over a sample's places only: their weights are many, their arithmetic is not.
    """
    import torch
    from torch import nn

    class Pooled(nn.Module):
        """Adds to all places what the layers make of their mean."""

        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(base.VOCABULARY, _WIDER), nn.Linear(_WIDER, _LOGITS)

        def forward(self, logits: Any) -> Any:
            return logits + self.down(self.up(logits.mean(1, keepdim=True)))

    model = base.build_model()
    torch.manual_seed(1)
    return nn.Sequential(model, *(Pooled() for _ in range(round(extra_mb * 1e6 / _LAYER_BYTES))))


def cut(model: Any, mesh: Any) -> None:
    """Shard each part of the model over a mesh."""
    from torch.distributed.fsdp import fully_shard

    for block in (*model[0].blocks.layers, *model[1:]):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


class Bytes:
    """Samples that are a function of their number."""

    def __len__(self) -> int:
        """Return their count."""
        return 1_200_000

    def __getitem__(self, number: int) -> Any:
        """Return bytes, one more than the context."""
        import torch

        seeded = torch.Generator().manual_seed(number)
        return torch.randint(base.VOCABULARY, (base.CONTEXT + 1,), generator=seeded)


def micro_batch(number: int, part: int = 0, parts: int = 1) -> Any:
    """Return a part of the samples of a micro-batch, counted from the first step."""
    import torch

    data = Bytes()
    first, each = number * ROWS, ROWS // parts
    ids = range(first + part * each, first + (part + 1) * each)
    return torch.stack([data[one % len(data)] for one in ids])


def backward(model: Any, rows: Any, of: int = 1) -> None:
    """Run forward and backward of a micro-batch, whose loss is a share of the rank's."""
    from torch.nn import functional

    logits = model(rows[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    (loss / of if of > 1 else loss).backward()


def adamw(model: Any) -> Any:
    """Return the optimizer."""
    import torch

    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)


# ------------------------------------------------------------------------------------------- ways


def _replicas(options: argparse.Namespace, log: base.StepLog) -> None:
    """Train as a replica that nobody restarts."""
    from torch import distributed as dist

    import holdfast
    from holdfast.data import Batches
    from holdfast.replicas import Replicated, members_of_environment, mesh_of

    job = holdfast.init()
    dist.init_process_group("gloo")
    members = members_of_environment()
    model = model_of(options.model_mb)
    if dist.get_world_size() > 1:
        cut(model, mesh_of(members, "cpu"))
    optimizer = adamw(model)
    replicated = Replicated(model, optimizer, members, micro_batches=options.micro_batches)
    batches = Batches(Bytes(), replicated, micro_batch=ROWS, epochs=10**6)
    told = None
    for step in batches.steps():
        for rows in step:
            backward(model, rows)
            time.sleep(options.pace_ms / 1000)
        optimizer.step()
        optimizer.zero_grad()
        epoch = getattr(members, "epoch", 0)
        log.belong(epoch, len(replicated.replicas) * dist.get_world_size())
        given, told = told, replicated.given
        if told is not None and told is not given:
            log.write("given", seconds=told.seconds)
        log.write("step", step=replicated.steps)
        job.step(replicated.steps)


def _world(options: argparse.Namespace, log: base.StepLog) -> None:
    """Train as a world that is restarted, from its newest checkpoint."""
    from torch import distributed as dist

    group = base.join_world(log, options.collective_timeout)
    model = model_of(options.model_mb)
    optimizer, parallel = plain(model, options.shards, group)
    keep = _saves(options, model, optimizer)
    share = PlainShare(options.shards, options.micro_batches)
    for step in itertools.count(keep.load() + 1):
        share.step(parallel, optimizer, step, options.pace_ms / 1000)
        log.write("step", step=step)
        keep.save(step)
        assert dist.is_initialized()  # noqa: S101 - a lost rank ends this process by an error


def plain(model: Any, shards: int, group: Any) -> tuple[Any, Any]:
    """Return optimizer and model under DDP, or under HSDP where a replica has several ranks."""
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel

    if shards == 1:
        return adamw(model), DistributedDataParallel(model, process_group=group)
    sizes = dist.get_world_size() // shards, shards
    cut(model, init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard")))
    return adamw(model), model


@dataclass(frozen=True, slots=True)
class PlainShare:
    """What a rank of DDP or HSDP computes."""

    shards: int
    """Ranks of a replica."""
    micro_batches: int
    """Of a step in the whole job."""

    def step(self, parallel: Any, optimizer: Any, step: int, pace: float) -> None:
        """Make a step that reduces over replicas in its last micro-batch only."""
        from torch import distributed as dist

        rank, world, shards = dist.get_rank(), dist.get_world_size(), self.shards
        mine = range(rank // shards, self.micro_batches, world // shards)
        for number in mine:
            is_last = number == mine[-1]
            late: Any = contextlib.nullcontext()
            if shards > 1:
                parallel.set_requires_all_reduce(is_last)
            elif not is_last:
                late = parallel.no_sync()
            rows = micro_batch(step * self.micro_batches + number, rank % shards, shards)
            with late:
                backward(parallel, rows, len(mine))
            time.sleep(pace)
        optimizer.step()
        optimizer.zero_grad()


class _Flash:
    """Holdfast's checkpoint in memory behind each step: a restart repeats none."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        import holdfast

        self._flash = holdfast.Checkpointer(None, model=model, optimizer=optimizer)

    def load(self) -> int:
        """Return the step of the newest."""
        return int(self._flash.load())

    def save(self, step: int) -> None:
        """Save it in memory."""
        self._flash.save(step, durable=False)


class _Files:
    """Torch's checkpoints each ten steps, in files that lie in memory."""

    def __init__(self, options: argparse.Namespace, model: Any, optimizer: Any) -> None:
        from torch import distributed as dist

        kind = "dcp" if options.shards > 1 else "torch"
        self._saves = base.make_saves(kind, options.saves_dir, dist.get_rank())
        self._state = model, optimizer

    def load(self) -> int:
        """Return the step of the newest."""
        return self._saves.load(*self._state)

    def save(self, step: int) -> None:
        """Save each tenth step."""
        if step % base.SAVE_EVERY == 0:
            self._saves.save(step, *self._state)


def _saves(options: argparse.Namespace, model: Any, optimizer: Any) -> _Flash | _Files:
    if options.restore == "flash":
        return _Flash(model, optimizer)
    return _Files(options, model, optimizer)


def _torchft(options: argparse.Namespace, log: base.StepLog) -> None:
    """Train as a replica group of torchft, as its example `train_ddp` does.

    A step is thrown away where its vote fails; its micro-batches are lost.
    """
    inner = model_of(options.model_mb)
    plain_optimizer = adamw(inner)
    manager = _manager(inner, plain_optimizer)
    model = _module("ddp").DistributedDataParallel(manager, inner)
    optimizer = _module("optim").OptimizerWrapper(manager, plain_optimizer)
    count = options.micro_batches // int(os.environ["REPLICAS"])
    for turn in itertools.count():
        optimizer.zero_grad()
        for at in range(count):
            is_last = at == count - 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                backward(model, micro_batch(turn * options.micro_batches + at), count)
            time.sleep(options.pace_ms / 1000)
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() == before:
            log.write("discarded", step=before + 1)
        elif manager.is_participating():
            log.belong(manager._quorum_id, manager.num_participants())  # noqa: SLF001 - the epoch
            log.write("step", step=manager.current_step())


def _manager(model: Any, optimizer: Any) -> Any:
    from torch import distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def load(state: Mapping[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = _module("manager").Manager(
        pg=_module("process_group").ProcessGroupGloo(timeout=_TORCHFT_LIMIT),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        timeout=_TORCHFT_LIMIT,
        quorum_timeout=_TORCHFT_LIMIT,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"replica_{os.environ['REPLICA']}",
        hostname="127.0.0.1",
    )
    manager.bench_store = store  # lives as long as the manager
    return manager


def _module(name: str) -> Any:
    """Return a module of torchft, which the project's environment has not."""
    return importlib.import_module(f"torchft.{name}")


LOOPS: Final[Mapping[str, Callable[[argparse.Namespace, base.StepLog], None]]] = {
    "replicas": _replicas,
    "world": _world,
    "torchft": _torchft,
}

if __name__ == "__main__":
    main()
