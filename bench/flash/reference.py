"""The plain copy that everything is held against.

One `copy_` per tensor, by one thread, into shared memory that is faulted in already: no checkpoint
that copies by `copy_` can beat it. From a GPU: all of them begun one after another, into memory
that CUDA has pinned, then one wait for all.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import Any

from bench.flash.state import leaves, local


class Reference:
    """The copy of one state."""

    def __init__(self, state: Any) -> None:
        """Make the memory and touch it."""
        import torch

        self._gpu = any(leaf.is_cuda for leaf in leaves(state))
        self._sources = [local(leaf).detach() for leaf in leaves(state)]
        self.bytes = sum(tensor.nbytes for tensor in self._sources)
        self.tensors = len(self._sources)
        size = sum(-(-tensor.nbytes // 64) * 64 for tensor in self._sources)
        fd = os.memfd_create("reference")
        os.ftruncate(fd, size)
        self.memory = mmap.mmap(fd, size)
        os.close(fd)
        self._targets, at = [], 0
        for tensor in self._sources:
            target = torch.frombuffer(
                self.memory, dtype=tensor.dtype, count=tensor.numel(), offset=at
            )
            self._targets.append(target.view(tensor.shape))
            at += -(-tensor.nbytes // 64) * 64
        if self._gpu:
            self._pin()
        self.seconds()

    def seconds(self) -> float:
        """Copy everything once; return how long it took."""
        begin = time.perf_counter()
        for target, source in zip(self._targets, self._sources, strict=True):
            target.copy_(source, non_blocking=self._gpu)
        self._wait()
        return time.perf_counter() - begin

    def back(self) -> float:
        """Copy everything back; return how long it took."""
        begin = time.perf_counter()
        for target, source in zip(self._targets, self._sources, strict=True):
            source.copy_(target, non_blocking=self._gpu)
        self._wait()
        return time.perf_counter() - begin

    def _pin(self) -> None:
        import torch

        address = min(target.data_ptr() for target in self._targets)
        error = int(torch.cuda.cudart().cudaHostRegister(address, len(self.memory), 0))
        if error:
            raise RuntimeError(f"cudaHostRegister: error {error}")

    def _wait(self) -> None:
        if self._gpu:
            import torch

            torch.cuda.synchronize()
