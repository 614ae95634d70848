"""Copies from mapped images into GPUs, by way of pinned memory that several threads fill.

From memory that is not pinned CUDA copies by one thread, through a buffer of its own; to pin an
image takes about half as long as that. Imported only where something restored is on a GPU;
everything of CUDA is reached through torch's `cuda` module, which is passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.copying import Piece, Pieces

if TYPE_CHECKING:
    import torch

    Parts = list[tuple[int, torch.Tensor, torch.Tensor]]
    """(offset in the buffer, to, from), as bytes."""

_BUFFER_BYTES: Final = 32 * 2**20
"""Long enough that what one copy costs beside its bytes does not count."""
_BUFFERS: Final = 3
"""One is filled, one is copied from, one waits."""
_ALIGNMENT: Final = 256
"""Bytes: CUDA's copies begin there at full speed."""


def upload(
    cuda: Any,
    pairs: Iterable[tuple[torch.Tensor, torch.Tensor]],
    threads: int,
    *,
    pinned: bool = True,
    buffer_bytes: int = _BUFFER_BYTES,
) -> None:
    """Copy into tensors on GPUs from ones in memory; all of it is there when this returns.

    cuda: torch.cuda. pairs: (to, from), contiguous, of one type and size. threads: that fill the
    pinned memory. Follows what the current stream of each GPU has to do already.
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
        """Fill it, once nobody copies from it any more, and have the GPUs copy."""
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
    """Cut the pairs into parts that fill a buffer each."""
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
