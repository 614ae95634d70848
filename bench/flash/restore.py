"""Restores from the checkpoint server's memory, or from a checkpoint in the page cache.

From memory: the keeper has the step, as an agent has after a crash, and while the trainer copies,
another process hashes as many bytes, as the keeper does when a world starts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from bench.flash.reference import Reference
from bench.flash.results import DCP_LOAD
from bench.flash.systems import Subject, System

_HASH = """
import mmap, os, sys, xxhash
with mmap.mmap(int(sys.argv[1]), 0) as memory:
    while True:
        xxhash.xxh3_64_intdigest(memory)
"""


@contextlib.contextmanager
def source(name: str, subject: Subject, reference: Reference) -> Iterator[System]:
    """Give what restores the state (its `save`), once it can be restored."""
    made = _dcp(subject) if name == DCP_LOAD else _flash(subject, reference)
    with made as system:
        yield system


@contextlib.contextmanager
def _dcp(subject: Subject) -> Iterator[System]:
    import torch.distributed.checkpoint as dcp

    dcp.save(subject.state, checkpoint_id=subject.folder / "1")
    yield System(save=lambda _step: dcp.load(subject.state, checkpoint_id=subject.folder / "1"))


@contextlib.contextmanager
def _flash(subject: Subject, reference: Reference) -> Iterator[System]:
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
        yield System(save=load, settle=loader._preparer.close)  # noqa: SLF001


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
