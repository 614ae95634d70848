"""The ways of saving, and of restoring. Each is made ready once, then called once per repetition.

A call returns when training could go on; `settle` waits, unmeasured, until the next call finds
what it needs; `is_durable` tells whether the last save would outlive the machine. DLRover's run in
another environment, without Holdfast: nothing here imports a system before it is asked for.

A restore from memory: the keeper has the step, as an agent has after a crash, and while the trainer
copies, another process hashes as many bytes, as the keeper does when a world starts.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.flash import results
from bench.flash.reference import Reference
from bench.flash.state import leaves, local

_DLROVER: Final = "dlrover.trainer.torch.flash_checkpoint"
_HASH = """
import mmap, os, sys, xxhash
with mmap.mmap(int(sys.argv[1]), 0) as memory:
    while True:
        xxhash.xxh3_64_intdigest(memory)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """The state to be saved, its folder, and the world that saves."""

    folder: Path
    model: Any
    optimizer: Any
    state: dict[str, Any]
    """As torch's own ways take it."""
    world: int
    device: str = "cpu"


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOfSaving:
    """One way of saving, ready."""

    save: Callable[[int], None]
    settle: Callable[[], None] = _nothing
    close: Callable[[], None] = _nothing
    is_durable: Callable[[], bool] = lambda: True
    join: Callable[[], None] = _nothing
    """Comes before the optimizer's next step."""


def flash(subject: SavedState, threads: int) -> WayOfSaving:
    """Save to memory; the process that keeps the memory hashes each save meanwhile."""
    from holdfast import Checkpointer

    made = Checkpointer(
        subject.folder, model=subject.model, optimizer=subject.optimizer, threads=threads
    )
    made.prepare()

    def settle() -> None:
        client, saver = made._client, made._preparer.copier  # noqa: SLF001 - nothing public waits for it
        if client is not None and saver is not None:
            client.wait_for_slot(saver.arena, 60)
            time.sleep(0.1 + saver.arena.geometry.slot_bytes / 4e9)  # until it is hashed

    return WayOfSaving(
        save=lambda step: made.save(step, durable=False), settle=settle, close=made.close
    )


def block(subject: SavedState) -> WayOfSaving:
    """Copy as many bytes in one block, streaming, by a thread for each core that this rank has.

    No checkpoint that has to copy takes less: of the state there is nothing in it but the size.
    """
    from holdfast.flash.trainer.memcpy import CopyRange, CopyRanges

    size = sum(local(leaf).nbytes for leaf in leaves(subject.state))
    source, target = (np.ones(size, dtype=np.uint8) for _ in range(2))
    pieces = CopyRanges([CopyRange(target.ctypes.data, source.ctypes.data, size)])
    threads = max(1, len(os.sched_getaffinity(0)) // subject.world)

    def save(_step: int) -> None:
        pieces.copy(threads)

    def close() -> None:
        if not np.array_equal(source[-64:], target[-64:]):  # and both have lived until here
            raise RuntimeError("the copy is not the source")

    return WayOfSaving(save=save, close=close)


def overlapped(subject: SavedState) -> WayOfSaving:
    """Save to storage; the copy runs beside forward and backward."""
    from holdfast import Checkpointer

    made = Checkpointer(
        subject.folder, model=subject.model, optimizer=subject.optimizer, overlap=True, keep_last=1
    )
    made.prepare()
    last = [0]

    def save(step: int) -> None:
        last[0] = step
        made.save(step)

    return WayOfSaving(
        save=save,
        settle=made.wait,
        close=made.close,
        is_durable=lambda: made.latest() == last[0],
        join=made.join,
    )


def torch_save(subject: SavedState) -> WayOfSaving:
    """Save to disk by torch.save, without fsync."""
    import torch

    return WayOfSaving(save=lambda _step: torch.save(subject.state, subject.folder / "state.pt"))


def dcp_save(subject: SavedState) -> WayOfSaving:
    """Save to disk by dcp.save."""
    import torch.distributed.checkpoint as dcp

    def save(step: int) -> None:
        dcp.save(subject.state, checkpoint_id=subject.folder / str(step))

    return WayOfSaving(save=save, settle=lambda: _empty(subject))


def async_save(subject: SavedState, kind: str) -> WayOfSaving:
    """Save by dcp.async_save, with torch's default stager or with one that keeps its memory."""
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    options: dict[str, Any] = {}
    if kind not in (results.ASYNC, results.ASYNC_AS_PROCESS):
        options["async_stager"] = _stager(kind, gpu=subject.device == "cuda")
    if kind in (results.ASYNC_PROCESS, results.ASYNC_AS_PROCESS):
        options["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS
    elif subject.world > 1:  # its thread's collectives would meet the trainer's own
        options["process_group"] = dist.new_group(backend="gloo")
    made = _Async(subject, options)
    return WayOfSaving(
        save=made.save, settle=made.settle, is_durable=made.is_durable, join=made.join
    )


class _Async:
    """Saves by dcp.async_save."""

    def __init__(self, subject: SavedState, options: dict[str, Any]) -> None:
        self._subject, self._options = subject, options
        self._pending, self._staged = list[Any](), list[Any]()

    def save(self, step: int) -> None:
        import torch.distributed.checkpoint as dcp

        folder = self._subject.folder / str(step)
        made: Any = dcp.async_save(self._subject.state, checkpoint_id=folder, **self._options)
        self._pending.append(getattr(made, "upload_completion", made))
        if hasattr(made, "staging_completion"):
            self._staged.append(made.staging_completion)

    def join(self) -> None:
        while self._staged:
            self._staged.pop().result()

    def settle(self) -> None:
        for future in self._pending:
            future.result()
        self._pending.clear()
        _empty(self._subject)

    def is_durable(self) -> bool:
        return bool(self._pending[-1].done())


def _stager(kind: str, *, gpu: bool) -> Any:
    """Return a stager that keeps its memory; for a GPU it uses all that torch offers."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    made = DefaultStager(
        StagingOptions(
            use_pinned_memory=gpu,
            use_shared_memory=kind == results.ASYNC_PROCESS,
            use_async_staging=kind == results.ASYNC_STAGED,
            use_non_blocking_copy=gpu,
        )
    )
    inner: Any = made._state_dict_stager  # noqa: SLF001
    inner.close = lambda: None  # torch 2.11 closes it after its first save, and it fails then
    return made


def dlrover(subject: SavedState, kind: str) -> WayOfSaving:
    """Save by DLRover's checkpointer of replicated state, into its agent's memory or to disk."""
    kinds: Any = importlib.import_module(f"{_DLROVER}.checkpointer")
    made = importlib.import_module(f"{_DLROVER}.ddp").DdpCheckpointer(str(subject.folder))
    disk, last = kind == results.DLROVER_DISK, [0]
    storage = kinds.StorageType.DISK if disk else kinds.StorageType.MEMORY

    def save(step: int) -> None:
        last[0] = step
        made.save_checkpoint(step, subject.state, storage_type=storage)

    def is_durable() -> bool:
        tracker = subject.folder / "dlrover_latest.txt"
        return tracker.exists() and tracker.read_text().strip() == str(last[0])

    def settle() -> None:
        while disk and not is_durable():
            time.sleep(0.05)
        for path in subject.folder.iterdir():
            if path.is_dir() and path.name.isdecimal():
                shutil.rmtree(path)

    return WayOfSaving(save=save, settle=settle, is_durable=is_durable)


def dlrover_fsdp(subject: SavedState) -> WayOfSaving:
    """Save by DLRover's engine of sharded state, into its agent's memory."""
    storage: Any = importlib.import_module("dlrover.python.common.storage")
    engine: Any = importlib.import_module(f"{_DLROVER}.fsdp_engine")
    made = engine.FsdpCheckpointEngine(str(subject.folder), storage.get_checkpoint_storage(None))

    def save(step: int) -> None:
        paths = {"model_states": str(subject.folder / str(step))}
        made.save_to_memory(step, subject.state, paths)

    return WayOfSaving(save=save)


def _empty(subject: SavedState) -> None:
    import torch.distributed as dist

    if subject.world > 1:
        dist.barrier()
        if dist.get_rank():
            return
    for path in subject.folder.iterdir():
        shutil.rmtree(path, ignore_errors=True)


SYSTEMS: dict[str, Callable[[SavedState], WayOfSaving]] = {
    results.FLASH_1: lambda subject: flash(subject, 1),
    results.FLASH_2: lambda subject: flash(subject, 2),
    results.OVERLAPPED: overlapped,
    results.BLOCK: block,
    results.TORCH_SAVE: torch_save,
    results.DCP_SAVE: dcp_save,
    results.ASYNC: lambda subject: async_save(subject, results.ASYNC),
    results.ASYNC_AS_PROCESS: lambda subject: async_save(subject, results.ASYNC_AS_PROCESS),
    results.ASYNC_THREAD: lambda subject: async_save(subject, results.ASYNC_THREAD),
    results.ASYNC_STAGED: lambda subject: async_save(subject, results.ASYNC_STAGED),
    results.ASYNC_PROCESS: lambda subject: async_save(subject, results.ASYNC_PROCESS),
    results.DLROVER: lambda subject: dlrover(subject, results.DLROVER),
    results.DLROVER_DISK: lambda subject: dlrover(subject, results.DLROVER_DISK),
    results.DLROVER_FSDP: dlrover_fsdp,
}


@contextlib.contextmanager
def restoring(name: str, subject: SavedState, reference: Reference) -> Iterator[WayOfSaving]:
    """Give what restores the state (its `save`), once it can be restored."""
    made = _from_dcp(subject) if name == results.DCP_LOAD else _from_memory(subject, reference)
    with made as system:
        yield system


@contextlib.contextmanager
def _from_dcp(subject: SavedState) -> Iterator[WayOfSaving]:
    import torch.distributed.checkpoint as dcp

    dcp.save(subject.state, checkpoint_id=subject.folder / "1")
    yield WayOfSaving(
        save=lambda _step: dcp.load(subject.state, checkpoint_id=subject.folder / "1")
    )


@contextlib.contextmanager
def _from_memory(subject: SavedState, reference: Reference) -> Iterator[WayOfSaving]:
    from holdfast import Checkpointer

    state: dict[str, Any] = {"model": subject.model, "optimizer": subject.optimizer}
    with Checkpointer(None, **state) as saver:
        saver.save(1, durable=False)
    os.environ["HOLDFAST_ROUND"] = "1"  # the next world
    with Checkpointer(None, **state) as loader, _hashing(reference):

        def load(_step: int) -> None:
            if loader.load() != 1:
                raise RuntimeError("the keeper has lost the step")

        # Unmapping comes later than a restore: what is mapped is kept for the next save.
        yield WayOfSaving(save=load, settle=loader._preparer.close)  # noqa: SLF001


@contextlib.contextmanager
def _hashing(reference: Reference) -> Iterator[None]:
    fd = os.memfd_create("hashed")
    os.truncate(fd, len(reference.memory))
    os.pwrite(fd, b"x", 0)
    process = subprocess.Popen([sys.executable, "-c", _HASH, str(fd)], pass_fds=[fd])
    os.close(fd)
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
