"""Reads a committed step as whole tensors and values, whatever ranks saved the parts.

Belongs here: reading without a model. Does not belong here: a restore into a training state
(`trainer.restore`), the use of the contents (`diff`, `convert`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.storage.filesystem import PosixDisk
from holdfast.flash.storage.manifest import ManifestError
from holdfast.flash.storage.reader import verify
from holdfast.flash.trainer.planner import Local
from holdfast.flash.trainer.reshard import Filler, of_files, stored
from holdfast.flash.trainer.values import decode_value

if TYPE_CHECKING:
    import torch


class Contents:
    """Tensors and values of one committed step; every hash was compared."""

    def __init__(self, path: str) -> None:
        """Read and verify a step; raises `ManifestError`."""
        self.path = path
        self.step = verify(PosixDisk(), path).version.step
        self._found = stored(of_files(path))

    @cached_property
    def forms(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Dtype and shape of each tensor, by name."""
        first = {name: parts[0].item for name, parts in self._found.tensors.items()}
        return {name: (item.dtype, item.shape) for name, item in sorted(first.items())}

    @property
    def values(self) -> list[str]:
        """Names of the values that are no tensors."""
        return sorted(self._found.values)

    @property
    def paths(self) -> dict[str, Path]:
        """Name → keys in the nested state."""
        return self._found.paths

    def tensor(self, name: str) -> torch.Tensor:
        """Return a whole tensor, on the CPU; raises `ManifestError` if a part is missing."""
        import torch

        dtype, shape = self.forms[name]
        values = torch.empty(shape, dtype=getattr(torch, dtype))
        filler = Filler(self._found)
        offsets = (0,) * len(shape)
        local = Local(shape=shape, offsets=offsets, values=values, copy=0, copies=1)
        if not filler.fill(name, local):
            raise ManifestError(f"{self.path}: {'; '.join(filler.wrong)}")
        filler.copy(1)
        return values

    def value(self, name: str) -> Any:
        """Return a value, loaded as plain data; raises `StateError`."""
        return decode_value(name, self._found.value(name))
