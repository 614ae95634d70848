"""Writes what `torch.load` reads, one tensor at a time, in the way of `torch.save`.

An archive is a pickle that refers to tensors, then a record for each tensor. `torch.save` wants all
tensors in memory before it begins; here each is loaded when its record is due. Does not belong
here: files that are read (`torch_zip`, `torch_file`).
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.tools.formats.foreign import Checkpoint, ForeignError, ForeignTensor
from holdfast.flash.tools.formats.holdfast_step import Progress, bytes_of
from holdfast.flash.tools.formats.pickle_child import STORAGES

if TYPE_CHECKING:
    import torch

_FOLDER: Final = "archive"
_ALIGN: Final = 64
"""A record begins at a multiple of these bytes, as torch's own do: `mmap=True` wants it."""
_CHUNK: Final = 2**24
_LOCAL: Final = 30
"""Bytes of a record's local header, without name and extra field."""
_ZIP64: Final = 20
"""Bytes that zipfile adds to the extra field of a large record."""
_LARGE: Final = 2**31 - 1
_TYPED: Final = {dtype: name for name, dtype in STORAGES.items()}


@dataclass(frozen=True, slots=True, eq=False)
class _Record:
    """A tensor's bytes in the archive, which the pickle refers to."""

    key: str
    dtype: str
    bytes: int
    count: int
    load: Callable[[], torch.Tensor]
    counts: bool
    """It is among the checkpoint's tensors, whose bytes the progress counts."""


class _Pickler(pickle.Pickler):
    """Pickles a state as torch does, and lists its tensors."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)
        self.records: list[_Record] = []

    def persistent_id(self, value: Any) -> Any:
        """Return torch's reference to a record; None for all else."""
        import torch

        if not isinstance(value, _Record):
            return None
        name = _TYPED.get(value.dtype)
        kind = torch.UntypedStorage if name is None else getattr(torch, name)
        count = value.bytes if name is None else value.count
        return ("storage", kind, value.key, "cpu", count)

    def reducer_override(self, value: Any) -> Any:
        """Return how torch builds a tensor of a record."""
        import torch

        if isinstance(value, torch.Tensor):
            whole = value.detach().cpu().contiguous()
            dtype = str(whole.dtype).removeprefix("torch.")
            return self._tensor(dtype, tuple(whole.shape), lambda: whole, counts=False)
        if isinstance(value, ForeignTensor):
            return self._tensor(value.dtype, value.shape, value.load, counts=True)
        return NotImplemented

    def _tensor(
        self,
        dtype: str,
        shape: tuple[int, ...],
        load: Callable[[], torch.Tensor],
        *,
        counts: bool,
    ) -> Any:
        import torch
        from torch import _utils

        form = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        key = str(len(self.records))
        record = _Record(key, dtype, form.nbytes, form.numel(), load, counts)
        self.records.append(record)
        hooks: OrderedDict[str, Any] = OrderedDict()
        view = (record, 0, shape, form.stride(), False, hooks)
        if dtype in _TYPED:
            return _utils._rebuild_tensor_v2, view  # noqa: SLF001 - the name is in the format
        return _utils._rebuild_tensor_v3, (*view, form.dtype)  # noqa: SLF001


def save(file: File, state: Any, progress: Progress | None = None) -> None:
    """Write one new file, durably; `ForeignTensor` in the state is read when its turn comes.

    Tensors are whole, contiguous and on the CPU; two that share a storage are written twice.

    Raises:
        ForeignError: a tensor is damaged, or a value cannot be pickled.
        OSError: the file is there already, or cannot be written. The caller removes it.
    """
    body = io.BytesIO()
    pickler = _Pickler(body)
    try:
        pickler.dump(state)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise ForeignError(f"{file.name}: a value cannot be pickled: {error}") from error
    with file.open("xb") as stream:
        with zipfile.ZipFile(stream, "w") as archive:
            _write(archive, stream, "data.pkl", memoryview(body.getbuffer()))
            _write(archive, stream, "byteorder", memoryview(b"little"))
            for record in pickler.records:
                _write(archive, stream, f"data/{record.key}", bytes_of(record.load()))
                if progress is not None and record.counts:
                    progress(record.bytes)
            _write(archive, stream, "version", memoryview(b"3\n"))
        stream.flush()
        os.fsync(stream.fileno())


def _write(archive: zipfile.ZipFile, stream: Any, name: str, body: memoryview) -> None:
    info = zipfile.ZipInfo(f"{_FOLDER}/{name}")
    large = len(body) > _LARGE
    header = _LOCAL + len(info.filename) + (_ZIP64 if large else 0) + 4
    pad = -(stream.tell() + header) % _ALIGN
    info.extra = b"FB" + pad.to_bytes(2, "little") + bytes(pad)
    with archive.open(info, "w", force_zip64=large) as record:
        for begin in range(0, len(body), _CHUNK):
            record.write(body[begin : begin + _CHUNK])


def write(found: Checkpoint, file: File, progress: Progress, *, model: bool = False) -> None:
    """Write a checkpoint as one file: the nested state, or with `model` the model's state_dict.

    Raises `ForeignError`, OSError; the caller removes the file.
    """
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    flat: dict[str, Any] = {tensor.name: tensor for tensor in found.tensors}
    paths = {tensor.name: tensor.path for tensor in found.tensors}
    for path, value in found.values.items():
        name = ".".join(map(str, path))
        flat[name], paths[name] = value, path
    state = unflatten_state_dict(flat, paths)
    save(file, state["model"] if model else state, progress)
