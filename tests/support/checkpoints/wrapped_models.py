"""One model in all of the wrappers that torch has for it, each saved once and loaded by each.

Run as a script with a directory; prints what became of each pair as one JSON line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import holdfast

KINDS = (
    "plain",
    "compile",
    "DDP(compile)",
    "compile(DDP)",
    "checkpoint_wrapper",
    "FSDP2 of compiled blocks",
    "DDP of parts",
)
PAIRS = [
    (one, other)
    for number, one in enumerate(KINDS)
    for other in KINDS
    if KINDS[0] in (one, other) or other == KINDS[(number + 1) % len(KINDS)]
]
"""From the plain model and to it, and from each to the next: so all of them save the same."""


def _plain(seed: int) -> Any:
    torch.manual_seed(seed)
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)) for _ in range(2)]
    return nn.Sequential(nn.Linear(4, 6), nn.ModuleDict({"blocks": nn.ModuleList(blocks)}))


def _wrap(kind: str) -> Callable[[Any], Any]:
    """Return what makes a model of a kind out of the plain one."""

    def compiled(model: Any) -> Any:
        return torch.compile(model, backend="eager")

    return {
        "plain": lambda model: model,
        "compile": compiled,
        "DDP(compile)": lambda model: DistributedDataParallel(compiled(model)),
        "compile(DDP)": lambda model: compiled(DistributedDataParallel(model)),
        "checkpoint_wrapper": lambda model: _blocks(model, checkpoint_wrapper),
        "FSDP2 of compiled blocks": lambda model: _sharded(_blocks(model, compiled)),
        "DDP of parts": lambda model: _blocks(model, DistributedDataParallel),
    }[kind]


def _blocks(model: Any, wrap: Callable[[Any], Any]) -> Any:
    blocks = model[1]["blocks"]
    for number in range(len(blocks)):
        blocks[number] = wrap(blocks[number])
    return model


def _sharded(model: Any) -> Any:
    for block in model[1]["blocks"]:
        fully_shard(block)
    fully_shard(model)
    return model


def _state(kind: str, seed: int) -> tuple[Any, Any, Any]:
    """Return the plain model inside, what the script passes, and its optimizer."""
    plain = _plain(seed)
    model = _wrap(kind)(plain)
    return plain, model, torch.optim.AdamW(model.parameters(), lr=0.05)


def _train(plain: Any, optimizer: Any, steps: int) -> None:
    """Take steps on gradients that no wrapper decides."""
    for step in range(1, steps + 1):
        for number, parameter in enumerate(plain.parameters()):
            parameter.grad = torch.full_like(parameter, 0.1 * step + 0.01 * number)
        optimizer.step()
        plain[1]["blocks"][0].get_buffer(_running(plain)).add_(step)


def _running(plain: Any) -> str:
    names: list[str] = [name for name, _ in plain[1]["blocks"][0].named_buffers()]
    return next(name for name in names if name.endswith("running_mean"))


def _values(plain: Any, optimizer: Any) -> list[list[float]]:
    """Return all values in the plain model's order."""
    found = [*plain.parameters(), *plain.buffers()]
    for parameter in plain.parameters():
        found += [value for _, value in sorted(optimizer.state[parameter].items())]
    whole = [getattr(value, "full_tensor", lambda value=value: value)() for value in found]
    return [value.detach().double().flatten().tolist() for value in whole]


def _saved(folder: Path, kind: str) -> list[list[float]]:
    plain, model, optimizer = _state(kind, 1)
    _train(plain, optimizer, 3)
    with holdfast.Checkpointer(folder / kind, model=model, optimizer=optimizer) as flash:
        flash.save(3)
    return _values(plain, optimizer)


def _loaded(folder: Path, kind: str, other: str) -> list[list[float]] | str:
    """Return what a model of a kind has after a load of what another saved."""
    plain, model, optimizer = _state(other, 2)
    with holdfast.Checkpointer(folder / kind, model=model, optimizer=optimizer) as flash:
        try:
            flash.load()
        except holdfast.RestoreError as error:
            return str(error)
    return _values(plain, optimizer)


def _main(folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
    wanted = {kind: _saved(folder, kind) for kind in KINDS}
    found = {}
    for kind, other in PAIRS:
        values = _loaded(folder, kind, other)
        equal = values == wanted[kind] == wanted["plain"]
        wrong = values if isinstance(values, str) else "other values"
        found[f"{kind} → {other}"] = "equal" if equal else wrong
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
