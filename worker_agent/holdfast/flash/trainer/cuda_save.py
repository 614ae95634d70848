"""Copies from GPUs into an arena: registered memory, a side stream for each GPU, events.

This module is imported only if a tensor to be saved is on a GPU. It reaches CUDA only through
torch's `cuda` module, which the caller passes in. Does not belong here: the CPU's part of a copy
and the moment of a copy (`copier`).
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

    from holdfast.flash.memory.arena import Arena

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
