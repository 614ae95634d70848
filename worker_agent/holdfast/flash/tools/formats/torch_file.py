"""Files of `torch.save`, both ways: the zip archive and its records, a training state in one file.

torch itself ignores the archive's checksums; here each byte that is used was compared with them.
`torch.save` wants all tensors in memory before it begins; here each is loaded when its record is
due.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.tools.formats.foreign import Checkpoint, ForeignError, ForeignTensor, whole
from holdfast.flash.tools.formats.holdfast_step import Progress, bytes_of
from holdfast.flash.tools.formats.pickle_child import STORAGES
from holdfast.flash.tools.formats.pickles import Opaque, Pickles, TensorRef, replaced
from holdfast.flash.tools.formats.training_state import BY_NAME, Keys, of_script

if TYPE_CHECKING:
    import torch


_CHUNK: Final = 2**24
"""Bytes read or written at once."""
_HEADER: Final = struct.Struct("<4s22xHH")
"""Signature, and the lengths of name and extra field, of a record's local header."""
SIGNATURE: Final = b"PK\x03\x04"
"""With which a record begins, and so an archive."""


class FileRange(io.RawIOBase):
    """A range of a file, as a file."""

    def __init__(self, path: str, begin: int = 0, length: int | None = None) -> None:
        """Open the range; raises OSError, `ForeignError` if the file is shorter."""
        self._handle = -1
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        size = os.fstat(self._handle).st_size
        self._begin, self._at = begin, 0
        self.length = size - begin if length is None else length
        if begin < 0 or self.length < 0 or begin + self.length > size:
            raise ForeignError(f"{path}: {size} bytes, not the {begin + self.length} that are due")

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move, as a file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.length}[whence]
        if base + offset < 0:
            raise ValueError(f"seek before the begin: {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read at the position, as a file."""
        view = memoryview(buffer)[: max(0, self.length - self._at)]
        done = os.preadv(self._handle, [view], self._begin + self._at) if view else 0
        self._at += done
        return done

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0 and not self.closed:
            os.close(self._handle)
        super().close()


@dataclass(frozen=True, slots=True)
class Record:
    """A record's bytes in the section."""

    at: int
    size: int
    crc: int


class TorchArchive:
    """The tensors in a file of torch.save, or in a range of a file with such an archive."""

    def __init__(self, path: str, begin: int = 0, length: int | None = None) -> None:
        """List the records; raises `ForeignError` if the archive is damaged, OSError."""
        self.path = path
        self._span = (begin, length)
        self._compared = set[str]()
        try:
            with FileRange(path, begin, length) as section:
                self._records = _records(section)
        except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError) as error:
            raise ForeignError(
                f"{path}: no whole archive of torch.save ({error}). Copy the file again; one of "
                "torch before 1.6 must be loaded and saved by a newer torch"
            ) from error
        if "byteorder" in self._records and self.read("byteorder") != b"little":
            raise ForeignError(f"{path} is of a big-endian machine: load and save it on this one")

    def read(
        self, name: str, begin: int = 0, size: int | None = None, *, checked: bool = True
    ) -> bytearray:
        """Return bytes of a record, after all of it was compared with its checksum.

        checked: False for a look at bytes that are read once more. Raises `ForeignError` naming
        file and record.
        """
        record = self._records.get(name)
        if record is None:
            raise ForeignError(f"{self.path}: the record {name} is missing: copy the file again")
        wanted = record.size - begin if size is None else size
        if begin < 0 or wanted < 0 or begin + wanted > record.size:
            raise ForeignError(
                f"{self.path}: {name} has {record.size} bytes, not the {begin + wanted} of a tensor"
            )
        with FileRange(self.path, *self._span) as section:
            if name in self._compared or not checked:
                return _take(section, record, begin, wanted)
            found = _compare(section, record, begin, wanted)
        if found is None:
            raise ForeignError(f"{self.path}: {name} differs from its checksum: it is damaged")
        self._compared.add(name)
        return found

    def tensor(self, ref: TensorRef, *, checked: bool = True) -> torch.Tensor:
        """Return a tensor, contiguous; raises `ForeignError` if it is damaged.

        checked: read all of its record, and compare the checksum; else only its own bytes.
        """
        import torch

        dtype = getattr(torch, ref.dtype)
        if len(ref.size) != len(ref.stride) or min((ref.at, *ref.size, *ref.stride)) < 0:
            raise ForeignError(f"{self.path}: data/{ref.key} has a tensor of a negative size")
        last = sum((n - 1) * step for n, step in zip(ref.size, ref.stride, strict=True))
        count, width = last + 1 if ref.count else 0, int(dtype.itemsize)
        body = self.read(f"data/{ref.key}", ref.at * width, count * width, checked=checked)
        if not count:
            return torch.empty(ref.size, dtype=dtype)
        flat = torch.frombuffer(body, dtype=dtype)
        return flat.as_strided(ref.size, ref.stride).contiguous()


def _take(section: FileRange, record: Record, begin: int, size: int) -> bytearray:
    body = bytearray(size)
    section.seek(record.at + begin)
    view, done = memoryview(body), 0
    while done < size and (more := section.readinto(view[done:])):
        done += more
    return body


def _compare(section: FileRange, record: Record, begin: int, size: int) -> bytearray | None:
    """Return a range of a record; None if the record differs from its checksum."""
    body, piece = bytearray(size), memoryview(bytearray(min(_CHUNK, max(record.size, 1))))
    crc, at = 0, 0
    section.seek(record.at)
    while at < record.size:
        done = section.readinto(piece[: min(len(piece), record.size - at)])
        if not done:
            return None
        crc = zlib.crc32(piece[:done], crc)
        first, last = max(at, begin), min(at + done, begin + size)
        if first < last:
            body[first - begin : last - begin] = piece[first - at : last - at]
        at += done
    return body if crc == record.crc else None


def _records(section: FileRange) -> dict[str, Record]:
    """Return the records by their names without the archive's folder."""
    found: dict[str, Record] = {}
    with zipfile.ZipFile(section) as archive:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise zipfile.BadZipFile(f"{info.filename} is compressed")
            name = info.filename.partition("/")[2]
            if name in found:
                raise zipfile.BadZipFile(f"{info.filename} is there twice")
            at = _begin(section, info)
            found[name] = Record(at, info.file_size, info.CRC)
    if "data.pkl" not in found:
        raise zipfile.BadZipFile("there is no data.pkl in it")
    return found


def _begin(section: FileRange, info: zipfile.ZipInfo) -> int:
    """Return where a record's bytes begin; raises if its two headers differ."""
    section.seek(info.header_offset)
    header = section.read(_HEADER.size) or b""
    signature, length, extra = _HEADER.unpack(header)
    name = section.read(length) or b""
    if signature != SIGNATURE or name != info.orig_filename.encode():
        raise zipfile.BadZipFile(f"{info.filename} has another name at its place")
    return info.header_offset + _HEADER.size + int(length) + int(extra)


class TorchFile(TorchArchive):
    """An archive with its data."""

    def __init__(
        self, pickles: Pickles, path: str, begin: int = 0, length: int | None = None
    ) -> None:
        """Read all but the tensors; raises `ForeignError`, OSError."""
        super().__init__(path, begin, length)
        self.state = pickles.read(self.read("data.pkl"), path)

    def with_tensors(self) -> Any:
        """Return the data with its tensors as `ForeignTensor`."""
        return replaced(self.state, TensorRef, lambda ref: of_ref(self, (f"data/{ref.key}",), ref))


def read(place: str, pickles: Pickles, keys: Keys = BY_NAME) -> Checkpoint:
    """Return a file's content; raises `ForeignError`, OSError."""
    file = TorchFile(pickles, place)
    if isinstance(file.state, Opaque):
        raise ForeignError(
            f"{place} holds an object, a {file.state.name}: save its state_dict() instead"
        )
    if not isinstance(file.state, Mapping) or not file.state:
        raise ForeignError(f"{place} holds {type(file.state).__name__}, not a state_dict")
    found = Checkpoint(
        place=place, format="torch", framework="torch", layout="one file of torch.save"
    )
    return of_script(found, file.with_tensors(), keys)


def of_ref(file: TorchFile, path: Path, ref: TensorRef) -> ForeignTensor:
    """Return a tensor of a file."""
    where = f"{file.path}: {'.'.join(map(str, path))}"
    return whole(path, ref.dtype, ref.size, where, partial(file.tensor, ref))


_FOLDER: Final = "archive"
_ALIGN: Final = 64
"""A record begins at a multiple of these bytes, as torch's own do: `mmap=True` wants it."""
_ZIP64: Final = 20
"""Bytes that zipfile adds to the extra field of a large record."""
_LARGE: Final = 2**31 - 1
_TYPED: Final = {dtype: name for name, dtype in STORAGES.items()}


@dataclass(frozen=True, slots=True, eq=False)
class _NewRecord:
    """A tensor's bytes in the archive, which the pickle refers to."""

    key: str
    tensor: ForeignTensor
    counts: bool
    """It is among the checkpoint's tensors, whose bytes the progress counts."""


class _Pickler(pickle.Pickler):
    """Pickles a state as torch does, and lists its tensors."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)
        self.records: list[_NewRecord] = []

    def persistent_id(self, value: Any) -> Any:
        """Return torch's reference to a record; None for all else."""
        import torch

        if not isinstance(value, _NewRecord):
            return None
        name = _TYPED.get(value.tensor.dtype)
        kind = torch.UntypedStorage if name is None else getattr(torch, name)
        count = value.tensor.bytes if name is None else math.prod(value.tensor.shape)
        return ("storage", kind, value.key, "cpu", count)

    def reducer_override(self, value: Any) -> Any:
        """Return how torch builds a tensor of a record."""
        import torch

        if isinstance(value, torch.Tensor):
            own = value.detach().cpu().contiguous()
            dtype = str(own.dtype).removeprefix("torch.")
            return self._tensor(whole((), dtype, own.shape, "", lambda: own), counts=False)
        if isinstance(value, ForeignTensor):
            return self._tensor(value, counts=True)
        return NotImplemented

    def _tensor(self, tensor: ForeignTensor, *, counts: bool) -> Any:
        import torch
        from torch import _utils

        form = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device="meta")
        record = _NewRecord(str(len(self.records)), tensor, counts)
        self.records.append(record)
        hooks: OrderedDict[str, Any] = OrderedDict()
        view = (record, 0, tensor.shape, form.stride(), False, hooks)
        if tensor.dtype in _TYPED:
            return _utils._rebuild_tensor_v2, view  # noqa: SLF001 - the name is in the format
        return _utils._rebuild_tensor_v3, (*view, form.dtype)  # noqa: SLF001


def save(file: File, state: Any, progress: Progress | None = None) -> None:
    """Write one new file, durably; `ForeignTensor` in the state is read when its turn comes.

    Tensors are whole, contiguous and on the CPU; two that share a storage are written twice.
    Raises `ForeignError` if a tensor is damaged, or a value cannot be pickled; OSError if the file
    is there already, or cannot be written. The caller removes it.
    """
    body = io.BytesIO()
    pickler = _Pickler(body)
    try:
        pickler.dump(state)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise ForeignError(f"{file.name}: a value cannot be pickled: {error}") from error
    with file.open("xb") as stream:
        with zipfile.ZipFile(stream, "w") as archive:
            _write_record(archive, stream, "data.pkl", memoryview(body.getbuffer()))
            _write_record(archive, stream, "byteorder", memoryview(b"little"))
            for record in pickler.records:
                _write_record(archive, stream, f"data/{record.key}", bytes_of(record.tensor.load()))
                if progress is not None and record.counts:
                    progress(record.tensor.bytes)
            _write_record(archive, stream, "version", memoryview(b"3\n"))
        stream.flush()
        os.fsync(stream.fileno())


def _write_record(archive: zipfile.ZipFile, stream: Any, name: str, body: memoryview) -> None:
    info = zipfile.ZipInfo(f"{_FOLDER}/{name}")
    large = len(body) > _LARGE
    header = _HEADER.size + len(info.filename) + (_ZIP64 if large else 0) + 4
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
