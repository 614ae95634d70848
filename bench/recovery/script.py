"""The training script that every system runs, unchanged.

It belongs here: a small GPT under DDP on gloo, steps of a fixed length, checkpoints, restore, and
one log line per event. It does not belong here: anything about the system that started it. The one
exception is ``--sdk``, which calls the Holdfast SDK as any Holdfast script would.

Run by path, also by the Python of another environment, so it needs torch and nothing of this
repository. Each rank appends JSON lines to ``LOG_DIR/rank-N.jsonl``, one ``write`` a line on an
``O_APPEND`` descriptor, so lines of an old and a new process of one rank never mix. Times are
``time.monotonic()``, which all processes of a machine share.
"""

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

STARTED = time.monotonic()

VOCABULARY = 256
CONTEXT = 32
BATCH = 4
WIDTH = 96
SAVE_EVERY = 10


class StepLog:
    """Appends one JSON line per event of this process."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._rank = int(os.environ.get("RANK", "0"))
        path = directory / f"rank-{self._rank}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._fixed: dict[str, Any] = {"rank": self._rank, "pid": os.getpid()}

    def belong(self, round_id: int, world: int) -> None:
        """Put ``round_id`` and ``world`` (ranks) into every later line."""
        self._fixed |= {"round": round_id, "world": world}

    def write(self, event: str, *, at: float | None = None, **fields: Any) -> None:
        """Write ``event``, stamped ``at`` (monotonic seconds) or now."""
        stamp = time.monotonic() if at is None else at
        line = json.dumps({"t": round(stamp, 6), "event": event, **self._fixed, **fields})
        os.write(self._fd, line.encode() + b"\n")


class TorchSaves:
    """Checkpoints by ``torch.save``: rank 0 writes, every rank reads."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._directory = directory
        self._rank = rank

    def save(self, step: int, model: Any, optimizer: Any) -> None:
        """Write under a temporary name, then rename."""
        import torch

        if self._rank != 0:
            return
        temporary = self._directory / f".step-{step}.tmp"
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, temporary)
        temporary.rename(self._directory / f"step-{step:08d}")
        for old in _saves(self._directory)[:-3]:
            old.unlink(missing_ok=True)

    def load(self, model: Any, optimizer: Any) -> int:
        """Read the newest file."""
        import torch

        saves = _saves(self._directory)
        if not saves:
            return 0
        loaded = torch.load(saves[-1], weights_only=True)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        return int(loaded["step"])


class DistributedSaves:
    """Checkpoints by ``torch.distributed.checkpoint``: all ranks write, rank 0 commits."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._directory = directory
        self._rank = rank

    def save(self, step: int, model: Any, optimizer: Any) -> None:
        """Write a directory; it counts once it has its final name."""
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import get_state_dict

        temporary = self._directory / f".step-{step}.tmp"
        weights, moments = get_state_dict(model, optimizer)
        checkpoint.save({"model": weights, "optimizer": moments}, checkpoint_id=temporary)
        if self._rank != 0:
            return
        final = self._directory / f"step-{step:08d}"
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        for old in _saves(self._directory)[:-3]:
            shutil.rmtree(old, ignore_errors=True)

    def load(self, model: Any, optimizer: Any) -> int:
        """Read the newest directory; with DDP every rank has the whole state and asks no other."""
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        saves = _saves(self._directory)
        if not saves:
            return 0
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        checkpoint.load(state, checkpoint_id=saves[-1], no_dist=True)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        return int(saves[-1].name.removeprefix("step-"))


Saves = TorchSaves | DistributedSaves
"""Every rank calls both methods; a save is whole or not there."""


def make_saves(kind: str, directory: Path, rank: int) -> Saves:
    """Return the saves of this ``kind``: "torch" or "dcp"."""
    directory.mkdir(parents=True, exist_ok=True)
    return DistributedSaves(directory, rank) if kind == "dcp" else TorchSaves(directory, rank)


def _saves(directory: Path) -> list[Path]:
    return sorted(directory.glob("step-*"))


def build_model() -> Any:
    """Build the GPT, about 0.28 million parameters, the same on every rank."""
    import torch
    from torch import nn

    class Gpt(nn.Module):
        """Next-byte prediction over ``CONTEXT`` bytes."""

        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, WIDTH)
            self.places = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
            layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
            self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(WIDTH, VOCABULARY)
            mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, batch: Any) -> Any:
            hidden = self.tokens(batch) + self.places
            return self.head(self.blocks(hidden, mask=self.mask, is_causal=True))

    torch.manual_seed(0)
    return Gpt()


def make_step(model: Any, optimizer: Any, rank: int, group: Any) -> Callable[[int], float]:
    """Return the function that trains one step on bytes drawn from (step, rank)."""
    import torch
    from torch import distributed as dist
    from torch.nn import functional

    def train(step: int) -> float:
        seeded = torch.Generator().manual_seed(step * 1000 + rank)
        batch = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), generator=seeded)
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # What makes a step complete on all ranks: nobody is ahead by more than this sum.
        mean = loss.detach()
        dist.all_reduce(mean, group=group)
        return float(mean) / dist.get_world_size()

    return train


def join_world(log: StepLog, timeout_s: float | None) -> Any:
    """Join the process group; return the group to train on.

    The round's id is a number that rank 0 draws and everybody learns, so that the log tells rounds
    apart whatever the system under test calls them. With ``timeout_s``, collectives of training
    give up after that long; joining itself keeps torch's default.
    """
    import torch
    from torch import distributed as dist

    dist.init_process_group("gloo")
    drawn = torch.tensor([time.monotonic_ns()])
    dist.broadcast(drawn, 0)
    log.belong(int(drawn.item()), dist.get_world_size())
    log.write("joined")
    if timeout_s is None:
        return dist.group.WORLD
    return dist.new_group(timeout=timedelta(seconds=timeout_s))


def restore(log: StepLog, saves: Saves, model: Any, optimizer: Any) -> int:
    """Load the newest checkpoint and log how long that took; return the checkpoint's step."""
    begun = time.monotonic()
    step = saves.load(model, optimizer)
    log.write("restored", step=step, seconds=round(time.monotonic() - begun, 6))
    return step


def save(log: StepLog, saves: Saves, training: "Training", *, last: bool) -> None:
    """Write a checkpoint and log how long that took."""
    begun = time.monotonic()
    saves.save(training.step, training.model, training.optimizer)
    took = round(time.monotonic() - begun, 6)
    log.write("saved", step=training.step, seconds=took, last=last)


def settings() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", type=Path, required=True)
    parser.add_argument("--saves-dir", type=Path, required=True)
    parser.add_argument("--restore", choices=["torch", "dcp", "flash"], default="torch")
    parser.add_argument("--step-ms", type=float, default=30.0)
    parser.add_argument("--collective-timeout", type=float, default=None, help="seconds")
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--sdk", action="store_true", help="call the Holdfast SDK")
    return parser.parse_args()


@dataclass
class Training:
    """The model, its optimizer and the steps done so far."""

    model: Any
    optimizer: Any
    step: int = 0
    """Steps done."""


def prepare(options: argparse.Namespace, log: StepLog) -> tuple[Training, Saves, Any]:
    """Join, build and restore; return the training, the saves and the group to train on."""
    import torch

    if options.restore == "dcp":
        import torch.distributed.checkpoint.state_dict
    torch.set_num_threads(1)
    log.write("imported")
    group = join_world(log, options.collective_timeout)
    model = build_model()
    training = Training(model, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True))
    log.write("built")
    saves = make_saves(options.restore, options.saves_dir, torch.distributed.get_rank())
    training.step = restore(log, saves, training.model, training.optimizer)
    return training, saves, group


def main() -> None:
    """Train until the steps are done or somebody ends this process."""
    options = settings()
    log = StepLog(options.log_dir)
    log.write("started", at=STARTED)
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    job = None
    if options.sdk:
        import holdfast

        job = holdfast.init()
    training, saves, group = prepare(options, log)
    parallel = DistributedDataParallel(training.model, process_group=group)
    train = make_step(parallel, training.optimizer, dist.get_rank(), group)
    leave = False
    while training.step < options.steps and not leave:
        due = time.monotonic() + options.step_ms / 1000
        loss = train(training.step)
        training.step += 1
        log.write("step", step=training.step, loss=round(loss, 4))
        leave = job is not None and asks_to_leave(job, training.step, loss)
        if training.step % SAVE_EVERY == 0 or leave:
            save(log, saves, training, last=leave)
        time.sleep(max(0.0, due - time.monotonic()))
    dist.destroy_process_group()


def asks_to_leave(job: Any, step: int, loss: float) -> bool:
    """Report ``step``; return True when Holdfast wants a checkpoint and the end of this process."""
    import holdfast

    return bool(job.step(step, samples=BATCH, loss=loss) is holdfast.SAVE_AND_STOP)


if __name__ == "__main__":
    main()
