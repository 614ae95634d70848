"""A rank of a synchronous replica that trains, and the same training by one process alone.

Belongs here: model, data, loop, and what a rank writes down. Does not belong here: who is killed
and who comes (`local_sgd.elastic_jobs`).

All is in float64, so that a difference to the undisturbed run is a fault, and not the order of a
sum. Each step is a line of JSON in the rank's own log, under the name that a round has elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

SAMPLES: Final = 600
MICRO_BATCH: Final = 4
MICRO_BATCHES: Final = 12
RECORD: Final = "samples"
"""Folder of a run that each rank records its samples in."""
LATE: Final = 1.0
"""Seconds by which the replica that a scenario names as `late` learns of a roster."""
_WIDE: Final = 16
_WORD: Final = 12


class Doing:
    """What a rank does now, in a file for the one who kills it."""

    def __init__(self, path: Path, word: str) -> None:
        """Make the file."""
        path.write_bytes(word.ljust(_WORD).encode())
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _WORD)
        self._word = word

    def __call__(self, word: str) -> None:
        """Tell."""
        self._word = word
        self._map[:] = word.ljust(_WORD).encode()

    def within(self, one: Any, name: str, word: str) -> None:
        """Tell while a method of an object runs."""
        method = getattr(one, name)

        def told(*given: Any) -> Any:
            before = self._word
            self(word)
            try:
                return method(*given)
            finally:
                self(before)

        setattr(one, name, told)


class Samples:
    """Samples that are a function of their number; random noise is drawn at each reading."""

    def __init__(self, count: int = SAMPLES) -> None:
        """Take their count."""
        self._count = count

    def __len__(self) -> int:
        """Return their count."""
        return self._count

    def __getitem__(self, number: int) -> Any:
        """Return input and target."""
        import torch

        generator = torch.Generator().manual_seed(number)
        x = torch.randn(_WIDE, generator=generator, dtype=torch.float64)
        noise = 0.01 * torch.randn(_WIDE, dtype=torch.float64)
        return x + noise, x.sum().sin().unsqueeze(0)


def model_of(seed: int) -> Any:
    """Return layers with dropout, so that a micro-batch hangs on its own random numbers."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(_WIDE, 40), nn.GELU(), nn.Dropout(0.1), nn.Linear(40, 40), nn.GELU(),
        nn.Linear(40, 1),
    ).double()  # fmt: skip


def optimizer_of(model: Any) -> tuple[Any, Any]:
    """Return the optimizer and its schedule."""
    import torch
    from torch.optim.lr_scheduler import StepLR

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return optimizer, StepLR(optimizer, 20, gamma=0.9)


def run_rank(folder: Path, replica: int, shard: int, scenario: Mapping[str, Any]) -> None:
    """Be one rank: train until the replicas have made the scenario's steps."""
    from holdfast.replicas.replicated import Replicated
    from local_sgd.elastic_training import is_over, members_of

    now = Doing(folder / f"doing-{replica}-{shard}", "start")
    members = members_of(folder, replica, shard, scenario)
    model = model_of(os.getpid())  # replicas begin unlike: the first gives its weights to all
    if replica == 0 and not (folder / "begun").exists():
        model = model_of(scenario["seed"])
    if scenario["kind"] == "shards":
        _shard(model, members)
    optimizer, schedule = optimizer_of(model)
    replicated = Replicated(
        model, optimizer, members, micro_batches=scenario.get("micro_batches", MICRO_BATCHES),
        overlap=scenario.get("overlap", True), on_loss=scenario.get("on_loss", "recompute"),
        bucket_bytes=300,
    )  # fmt: skip
    replicated.carry("schedule", schedule)
    now.within(replicated, "_meet", "meeting")
    now.within(replicated, "_is_reduced", "reduction")
    now.within(replicated, "_end_own_healing", "joining")
    optimizer.register_step_pre_hook(lambda *_: now("optimizer"))
    optimizer.register_step_post_hook(lambda *_: now("compute"))
    if scenario.get("late") == replica:
        members._read = _late(members._read)
    if "slow_gift" in scenario:
        _slow_down(replicated, scenario["slow_gift"])
    with (folder / f"log-{replica}-{shard}").open("w", encoding="utf-8", buffering=1) as log:
        steps = _train(model, (optimizer, schedule), replicated, scenario, folder / RECORD)
        now("compute")
        for line in steps:
            log.write(json.dumps(line) + "\n")
            if is_over(scenario, folder, replicated.steps):
                break
        log.write(json.dumps({"weights": _weights(model)}) + "\n")


def _late(read: Callable[[], Any]) -> Callable[[], Any]:
    """Give each roster so many seconds after it came, as an agent does that has little of a CPU."""
    since = dict[int, float]()
    shown: Any = None

    def given() -> Any:
        nonlocal shown
        newest, now = read(), time.monotonic()
        if newest and now >= since.setdefault(newest.epoch, now) + (LATE if shown else 0):
            shown = newest
        return shown

    return given


def _slow_down(replicated: Any, seconds: float) -> None:
    """Let each part of the state be read so long after the one before, as over a slow link."""
    parcels = replicated._state._parcels

    def slowly() -> Any:
        for parcel in parcels():
            yield parcel
            time.sleep(seconds)

    replicated._state._parcels = slowly


def _shard(model: Any, members: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    from holdfast.replicas import mesh_of

    mesh = mesh_of(members, "cpu")
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _train(
    model: Any, stepped: tuple[Any, Any], replicated: Any, scenario: Mapping[str, Any], record: Path
) -> Any:
    from torch import nn

    from holdfast.data import Batches, BatchOptions

    optimizer, schedule = stepped
    batches = Batches(
        Samples(scenario.get("samples", SAMPLES)), replicated,
        micro_batch=scenario.get("micro_batch", MICRO_BATCH), seed=scenario["seed"], epochs=10_000,
        options=BatchOptions(record=record), **scenario.get("loader", {}),
    )  # fmt: skip
    for own, step in enumerate(batches.steps(), 1):
        begun, computed = time.monotonic(), 0
        for x, y in step:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            computed += 1
            time.sleep(scenario["pace"] / 4)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        yield {
            "pid": os.getpid(), "own": own, "step": replicated.steps, "round": replicated.steps,
            "place": replicated.steps, "lr": optimizer.param_groups[0]["lr"],
            "epoch": replicated._membership.epoch, "computed": computed,
            "recomputed": replicated.recomputed, "dropped": batches.dropped,
            "digest": _digest(model, optimizer), "begun": begun, "left": time.monotonic(),
            "members": len(replicated.replicas), "sees": replicated._members.has_changed(),
        }  # fmt: skip


def counted(folder: Path) -> dict[str, Any]:
    """Return how often each sample was used, where ranks have recorded that."""
    from holdfast.data.counting import count
    from holdfast.data.record import files_of, lines_of

    found = count(map(lines_of, files_of(folder / RECORD)))
    return {
        "steps": found.steps,
        "wrong": [*found.missing, *found.gaps],
        "lost": sum(one.lost for one in found.epochs),
        "doubled": sum(len(one.doubled) for one in found.epochs),
        "used": [one.used for one in found.epochs],
    }


def _weights(model: Any) -> list[float]:
    """Return this rank's parts of all weights."""
    from holdfast.replicas.buckets import local

    return [float(one) for each in model.parameters() for one in local(each.detach()).flatten()]


def _digest(model: Any, optimizer: Any) -> str:
    """Return a hash of weights and moments."""
    from holdfast.replicas.buckets import local

    found = hashlib.sha256()
    for one in model.parameters():
        found.update(local(one.detach()).numpy().tobytes())
        for _, value in sorted(optimizer.state[one].items()):
            found.update(local(value).numpy().tobytes())
    return found.hexdigest()[:16]


def undisturbed(seed: int, steps: int, parts: int = 1) -> list[float]:
    """Return the weights after the same steps by one process, all micro-batches in a row.

    Args:
        seed: Of the scenario.
        steps: To make.
        parts: Ranks of a replica: each draws random numbers of its own.
    """
    from torch import nn

    from holdfast.data.batches import Batches, BatchOptions, seed_all

    model = model_of(seed)
    optimizer, schedule = optimizer_of(model)
    readers = [
        Batches(
            Samples(), _Alone(), micro_batch=MICRO_BATCH, seed=seed, epochs=10_000,  # type: ignore[arg-type]
            options=BatchOptions(data_rank=(part, parts)),
        )
        for part in range(parts)
    ]  # fmt: skip
    for step in range(steps):
        for number in range(MICRO_BATCHES):
            for reader in readers:
                x, y = reader._read.now(reader._request((step, number)))
                seed_all(reader._seed((step, number)))
                (nn.functional.mse_loss(model(x), y) / MICRO_BATCHES / parts).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return _weights(model)


class _Alone:
    """The one that computes all."""

    micro_batches = MICRO_BATCHES


def part_of(weights: list[float], shard: int, shards: int) -> list[float]:
    """Return what one rank of `shards` has of all weights under FSDP2."""
    import torch

    parts, at = [], 0
    for one in model_of(0).parameters():
        whole = torch.tensor(weights[at : at + one.numel()], dtype=one.dtype).view(one.shape)
        at += one.numel()
        cut = whole.chunk(shards)
        parts += cut[shard].flatten().tolist() if shard < len(cut) else []
    return parts
