"""A committed step put together again: whole tensors and values, whoever saved which part.

Belongs here: reading without a model. Does not belong here: a restore into a training state
(`restoring`), what is done with what was read (`comparing`, `exchange`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from holdfast.flash.disk import PosixDisk
from holdfast.flash.filling import Filler
from holdfast.flash.images import of_files
from holdfast.flash.manifest import ManifestError
from holdfast.flash.planning import Local
from holdfast.flash.reading import verify
from holdfast.flash.stored import stored
from holdfast.flash.table import Path
from holdfast.flash.values import decode_value

if TYPE_CHECKING:
    import torch


class Contents:
    """What one committed step holds; every hash was compared."""

    def __init__(self, path: str) -> None:
        """Read and verify; raises `ManifestError`."""
        self.path = path
        self.step = verify(PosixDisk(), path).version.step
        self._found = stored(of_files(path))

    @cached_property
    def forms(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and shape of each tensor."""
        first = {name: parts[0].item for name, parts in self._found.tensors.items()}
        return {name: (item.dtype, item.shape) for name, item in sorted(first.items())}

    @property
    def values(self) -> list[str]:
        """Names of what is no tensor."""
        return sorted(self._found.values)

    @property
    def paths(self) -> dict[str, Path]:
        """Name → keys in the nested state."""
        return self._found.paths

    def tensor(self, name: str) -> torch.Tensor:
        """Return a whole tensor, on the CPU; raises `ManifestError` when a part is missing."""
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
        """Return a value; it is loaded as data. Raises `StateError`."""
        return decode_value(name, self._found.value(name))
