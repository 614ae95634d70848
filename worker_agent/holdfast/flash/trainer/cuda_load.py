"""Copies from mapped images into GPUs, through pinned memory that several threads fill.

CUDA copies from unpinned memory with one thread, through a buffer of its own; pinning an image
takes about half as long as that. This module is imported only if a restored tensor is on a GPU. It
reaches CUDA only through torch's `cuda` module, which the caller passes in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.trainer.copier import Piece, Pieces

if TYPE_CHECKING:
    import torch

    Parts = list[tuple[int, torch.Tensor, torch.Tensor]]
    """(offset in the buffer, to, from), as bytes."""

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
        Pieces(Piece(base + at, source.data_ptr(), source.numel()) for at, _, source in parts).copy(
            threads
        )
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
