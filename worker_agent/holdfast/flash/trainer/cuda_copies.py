"""Copies between GPUs and mapped images: into an arena for a save, out of images for a start.

A save copies from GPUs into registered memory, on a side stream of each GPU. A start copies through
pinned memory that several threads fill: CUDA copies from unpinned memory with one thread, and
pinning an image takes about half as long as that. This module is imported only if a tensor is on a
GPU. It reaches CUDA only through torch's `cuda` module, which the caller passes in.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.trainer.memcpy import CopyRange, CopyRanges

if TYPE_CHECKING:
    import torch

    from holdfast.flash.memory.arena import Arena

    Parts = list[tuple[int, torch.Tensor, torch.Tensor]]
    """(offset in the buffer, to, from), as bytes."""

Pairs = Sequence[tuple["torch.Tensor", "torch.Tensor"]]
"""(to, from)."""

_PORTABLE: Final = 1
"""cudaHostRegisterPortable: pinned for every GPU of this process, not the current one alone."""


class Gpus:
    """GPUs that one arena is filled from."""

    def __init__(self, cuda: Any, arena: Arena) -> None:
        """Register the arena's memory, once; without that, copies are correct but slower.

        cuda: torch.cuda.
        """
        self._cuda = cuda
        self._streams: dict[Any, Any] = {}
        runtime, address = cuda.cudart(), arena.address
        error = int(runtime.cudaHostRegister(address, len(arena.memory), _PORTABLE))
        if error:
            warnings.warn(
                f"cudaHostRegister of {len(arena.memory)} bytes failed with error {error}: copies "
                "from the GPU take longer. Is the limit of locked memory (ulimit -l) too low?",
                RuntimeWarning,
                stacklevel=2,
            )
        else:  # before the memory is unmapped
            weakref.finalize(arena, runtime.cudaHostUnregister, address)

    def start(self, pairs: Pairs, *, before_more: bool) -> list[Any]:
        """Begin to copy the current streams' results so far; return the events to wait for.

        before_more: work that is put on those streams from now on runs after the copy.
        """
        events = []
        devices = dict.fromkeys(source.device for _, source in pairs)
        for device in devices:
            current, side = self._cuda.current_stream(device), self._stream(device)
            side.wait_stream(current)
            with self._cuda.stream(side):
                for to, source in pairs:
                    if source.device == device:
                        to.copy_(source, non_blocking=True)
            event = self._cuda.Event()
            event.record(side)
            if before_more:
                current.wait_event(event)
            events.append(event)
        return events

    def _stream(self, device: Any) -> Any:
        if device not in self._streams:
            self._streams[device] = self._cuda.Stream(device)
        return self._streams[device]


_BUFFER_BYTES: Final = 32 * 2**20
"""Large enough that the fixed cost of a copy does not count."""
_BUFFERS: Final = 3
"""One is being filled, one is being copied from, one waits."""
_ALIGNMENT: Final = 256
"""Bytes: from multiples of this CUDA copies at full speed."""


def upload(
    cuda: Any,
    pairs: Iterable[tuple[torch.Tensor, torch.Tensor]],
    threads: int,
    *,
    pinned: bool = True,
    buffer_bytes: int = _BUFFER_BYTES,
) -> None:
    """Copy tensors from memory into tensors on GPUs; all copies are done at the return.

    cuda: torch.cuda. pairs: (to, from), contiguous, of equal dtype and size. threads: number of
    threads that fill the pinned memory. Runs after the pending work of each GPU's current stream.
    """
    buffers = [_Buffer(cuda, buffer_bytes, pinned=pinned) for _ in range(_BUFFERS)]
    for turn, parts in enumerate(_batches(pairs, buffer_bytes)):
        buffers[turn % _BUFFERS].send(parts, threads)
    for buffer in buffers:
        buffer.wait()


class _Buffer:
    """Pinned memory that GPUs copy from."""

    def __init__(self, cuda: Any, size: int, *, pinned: bool) -> None:
        import torch

        self._cuda = cuda
        self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self._events: list[Any] = []

    def send(self, parts: Parts, threads: int) -> None:
        """Fill the buffer, once no GPU copies from it any more, and start the GPUs' copies."""
        self.wait()
        base = self._memory.data_ptr()
        CopyRanges(
            CopyRange(base + at, source.data_ptr(), source.numel()) for at, _, source in parts
        ).copy(threads)
        for at, to, source in parts:
            to.copy_(self._memory[at : at + source.numel()], non_blocking=True)
        for device in dict.fromkeys(to.device for _, to, _ in parts):
            event = self._cuda.Event()
            event.record(self._cuda.current_stream(device))
            self._events.append(event)

    def wait(self) -> None:
        while self._events:
            self._events.pop().synchronize()


def _batches(pairs: Iterable[Sequence[torch.Tensor]], size: int) -> Iterator[Parts]:
    """Split the pairs into lists that fill a buffer each."""
    batch: Parts = []
    at = 0
    for to, source in (map(_bytes, pair) for pair in pairs):
        done = 0
        while done < source.numel():
            length = min(size - at, source.numel() - done)
            batch.append((at, to[done : done + length], source[done : done + length]))
            done += length
            at += -(-length // _ALIGNMENT) * _ALIGNMENT
            if at >= size:
                yield batch
                batch, at = [], 0
    if batch:
        yield batch


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.detach().reshape(-1).view(torch.uint8)
