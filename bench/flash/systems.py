"""The ways of saving that are compared. Each is made ready once, then called once per repetition.

A call returns when training could go on; `settle` waits, unmeasured, until the next call finds
what it needs. The reference is one `copy_` per tensor by one thread into shared memory that is
faulted in already: what no checkpoint by `copy_` can beat.
"""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.flash.state import leaves, nested


@dataclass(frozen=True, slots=True)
class System:
    """One way of saving, ready."""

    save: Callable[[int], None]
    settle: Callable[[], None]
    close: Callable[[], None]


def _nothing() -> None:
    """Does nothing."""


class Reference:
    """The plain copy."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        """Make the memory and touch it."""
        import torch

        self._sources = leaves(nested(model, optimizer))
        self.bytes = sum(tensor.nbytes for tensor in self._sources)
        size = sum(-(-tensor.nbytes // 64) * 64 for tensor in self._sources)
        fd = os.memfd_create("reference")
        os.ftruncate(fd, size)
        self._map = mmap.mmap(fd, size)
        os.close(fd)
        self._targets, at = [], 0
        for tensor in self._sources:
            target = torch.frombuffer(
                self._map, dtype=tensor.dtype, count=tensor.numel(), offset=at
            )
            self._targets.append(target.view(tensor.shape))
            at += -(-tensor.nbytes // 64) * 64
        self.seconds()

    def seconds(self) -> float:
        """Copy everything once; return how long it took."""
        import torch

        begin = time.perf_counter()
        with torch.no_grad():
            for target, source in zip(self._targets, self._sources, strict=True):
                target.copy_(source)
        return time.perf_counter() - begin

    def back(self) -> float:
        """Copy everything back; return how long it took."""
        import torch

        begin = time.perf_counter()
        with torch.no_grad():
            for target, source in zip(self._targets, self._sources, strict=True):
                source.copy_(target)
        return time.perf_counter() - begin


def flash(folder: Path, model: Any, optimizer: Any, threads: int) -> System:
    """Save to memory; the process that keeps it hashes each save beside."""
    from holdfast import Checkpointer

    flash = Checkpointer(folder, model=model, optimizer=optimizer, threads=threads)
    flash.prepare()

    def settle() -> None:
        client, saver = flash._client, flash._saver  # noqa: SLF001 - nothing public waits for it
        if client is not None and saver is not None:
            client.wait_for_slot(saver.arena, 60)
        time.sleep(0.3)

    return System(lambda step: flash.save(step, durable=False), settle, flash.close)


def torch_save(folder: Path, model: Any, optimizer: Any, _threads: int) -> System:
    """Save to disk by torch.save, without fsync."""
    import torch

    state = nested(model, optimizer)
    return System(lambda _step: torch.save(state, folder / "state.pt"), _nothing, _nothing)


def dcp_save(folder: Path, model: Any, optimizer: Any, _threads: int) -> System:
    """Save to disk by dcp.save."""
    import torch.distributed.checkpoint as dcp

    state = nested(model, optimizer)

    def save(step: int) -> None:
        dcp.save(state, checkpoint_id=folder / str(step), no_dist=True)

    def settle() -> None:
        _empty(folder)

    return System(save, settle, _nothing)


def _async(folder: Path, model: Any, optimizer: Any, stager: Callable[[], Any]) -> System:
    import torch.distributed.checkpoint as dcp

    state, futures = nested(model, optimizer), list[Any]()
    own = stager()

    def save(step: int) -> None:
        futures.append(
            dcp.async_save(state, checkpoint_id=folder / str(step), no_dist=True, async_stager=own)
        )

    def settle() -> None:
        for future in futures:
            getattr(future, "upload_completion", future).result()
        futures.clear()
        _empty(folder)

    return System(save, settle, _nothing)


def async_default(folder: Path, model: Any, optimizer: Any, _threads: int) -> System:
    """Save by dcp.async_save as it comes: each call makes its memory anew."""
    return _async(folder, model, optimizer, lambda: None)


def async_reused(folder: Path, model: Any, optimizer: Any, _threads: int) -> System:
    """Save by dcp.async_save with one stager that keeps its memory."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    options = StagingOptions(
        use_pinned_memory=False,
        use_shared_memory=False,
        use_async_staging=False,
        use_non_blocking_copy=False,
    )
    return _async(folder, model, optimizer, lambda: DefaultStager(options))


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path)


SYSTEMS: dict[str, Callable[[Path, Any, Any, int], System]] = {
    "flash": flash,
    "torch.save": torch_save,
    "dcp.save": dcp_save,
    "dcp.async_save": async_default,
    "dcp.async_save, stager reused": async_reused,
}
