"""Checkpoints by torch.distributed.checkpoint (DCP) that are either complete or not there.

`<folder>/step-00000040/` holds DCP's files and a manifest of their sizes and checksums. All is
written under another name and renamed at the end, which is the commit: a rank killed at any moment
leaves the older checkpoints as they were. DCP stores tensors by name, not by rank, so what four
processes wrote under DDP, three can read under FSDP2.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

MANIFEST = "manifest.json"
KEEP = 2
"""Complete checkpoints that stay: the newest, and one more should the disk damage that."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training is; with the flags it determines learning rate and data order."""

    step: int = 0
    """Completed optimizer steps."""
    samples: int = 0
    """Samples that went into them: where in the data to go on."""


class Checkpoints:
    """The checkpoints in one folder, which all ranks must see."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
        """Take where checkpoints go and what is in them."""
        self._folder = folder
        self._model = model
        self._optimizer = optimizer

    def save(self, progress: Progress) -> None:
        """Write a checkpoint; collective: every rank calls it after the same step."""
        partial = self._folder / f"step-{progress.step:08d}.partial"
        model, optimizer = get_state_dict(self._model, self._optimizer)
        numbers = torch.tensor([progress.step, progress.samples])
        state = {"model": model, "optimizer": optimizer, "progress": numbers}
        dcp.save(state, checkpoint_id=partial)
        if dist.get_rank() == 0:  # DCP has waited for every rank's files
            commit(partial)
            self._forget(progress.step)

    def restore(self) -> Progress:
        """Load the newest complete checkpoint, if there is one; collective.

        Rank 0 chooses, so that all ranks load the same. Then each reads what it needs by itself
        (`no_dist`), which saves the messages of DCP's planning.
        """
        began = time.perf_counter()
        chosen = torch.tensor([self._newest() if dist.get_rank() == 0 else 0])
        dist.broadcast(chosen, src=0)
        if not (step := int(chosen)):
            return Progress()
        model, optimizer = get_state_dict(self._model, self._optimizer)
        numbers = torch.zeros(2, dtype=torch.int64)
        state = {"model": model, "optimizer": optimizer, "progress": numbers}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load(state, checkpoint_id=self._path(step), no_dist=True)
        set_state_dict(
            self._model, self._optimizer, model_state_dict=model, optim_state_dict=optimizer
        )
        if dist.get_rank() == 0:
            took = time.perf_counter() - began
            print(f"restored step {step} from {self._path(step)} in {took:.3f} s", flush=True)
        return Progress(*numbers.tolist())

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}"

    def _steps(self) -> list[int]:
        """Return the steps that were committed, newest first."""
        names = (path.name for path in self._folder.glob("step-*"))
        numbers = (name.removeprefix("step-") for name in names)
        return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)

    def _newest(self) -> int:
        """Return the newest step whose files are whole, 0 for none, and sweep up the unfinished."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for partial in self._folder.glob("step-*.partial"):
            shutil.rmtree(partial)
        for step in self._steps():
            if not (damage := damage_in(self._path(step))):
                return step
            print(f"skipped {self._path(step)}: {damage}", flush=True)
        return 0

    def _forget(self, newest: int) -> None:
        """Delete all but the last `KEEP` checkpoints up to `newest`."""
        for step in [step for step in self._steps() if step <= newest][KEEP:]:
            shutil.rmtree(self._path(step))


def commit(partial: Path) -> None:
    """Write the manifest and rename `<name>.partial` to `<name>`, both made durable."""
    manifest = {path.name: describe(path) for path in sorted(partial.iterdir())}
    with (partial / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    final = partial.with_suffix("")
    if final.exists():  # skipped as damaged when this run began
        shutil.rmtree(final)
    for folder, rename in ((partial, True), (partial.parent, False)):
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
        if rename:
            partial.rename(final)


def damage_in(folder: Path) -> str:
    """Return what is wrong with a committed checkpoint, "" if its files are as they were written.

    Reads it all: a matter of milliseconds here. Large models check while they load.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        torn = [name for name, wanted in manifest.items() if describe(folder / name) != wanted]
    except (OSError, ValueError, AttributeError) as error:
        return str(error)
    return f"{', '.join(torn)}: not what was written" if torn else ""


def describe(file: Path) -> list[int]:
    """Return size in bytes and CRC-32 of a file."""
    data = file.read_bytes()
    return [len(data), zlib.crc32(data)]
