"""safetensors: one file, or a directory of them with Hugging Face's index. Both ways.

A file is 8 bytes of length, a header in JSON (name → dtype, shape, begin and end), the bytes. The
format has no checksums. What is written here has them in the header's `__metadata__`, which other
readers pass over, and they are compared when it is read again.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.memory.hashes import hash64
from holdfast.flash.memory.shard_table import Path
from holdfast.flash.tools.formats.foreign import (
    Checkpoint,
    ForeignError,
    ForeignTensor,
    from_json,
    to_json,
    whole,
    width,
)
from holdfast.flash.tools.formats.holdfast_step import Progress, bytes_of

if TYPE_CHECKING:
    import torch

INDEX: Final = "model.safetensors.index.json"
STATE: Final = "training_state.safetensors"
"""File of all that is no weight; other readers of the directory pass it over."""
SHARD_BYTES: Final = 5 * 10**9
"""Bytes of a file, at most, unless one tensor is larger: Hugging Face's default."""
_LENGTH: Final = struct.Struct("<Q")
_LARGEST: Final = 100_000_000
"""Bytes of a header, at most; the format's own limit."""
_META: Final = "__metadata__"
_HASHES: Final = "holdfast.xxh3_64"
_PATHS: Final = "holdfast.paths"
_VALUES: Final = "holdfast.values"
_OWN: Final = "holdfast.header"
"""Hash of the header itself, with zeros in this place."""
_ZEROS: Final = "0" * 16
_DTYPES: Final = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32",
    "U32": "uint32", "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}  # fmt: skip
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    file: str
    data: int
    """Offset of the first tensor's bytes."""
    entries: Mapping[str, _Entry]
    meta: Mapping[str, str] = field(default_factory=dict)


def read(place: str) -> Checkpoint:
    """Return the tensors of a file, or of a directory; raises `ForeignError`, OSError.

    Names in a file are a model's, unless it is a `training_state.safetensors` of `write`.
    """
    folder = File(place)
    files = [folder] if folder.is_file() else _files(folder)
    headers = [_header(str(file)) for file in files]
    tensors, values = list[ForeignTensor](), dict[Path, Any]()
    for header in headers:
        tensors += _tensors(header)
        if text := header.meta.get(_VALUES):
            values |= _values(header.file, text)
    if not folder.is_file() and (folder / INDEX).exists():
        _compare(folder / INDEX, headers)
    hashed = all(_HASHES in header.meta for header in headers)
    return Checkpoint(
        place=place,
        format="safetensors",
        framework="safetensors",
        layout=f"{len(files)} files" if len(files) > 1 else "one file",
        tensors=tuple(tensors),
        values=values,
        notes=() if hashed else ("the files have no checksums: a changed value is not noticed",),
    )


def _values(file: str, text: str) -> dict[Path, Any]:
    try:
        return {tuple(path): from_json(value) for path, value in json.loads(text)}
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise ForeignError(f"{file}: {_VALUES} is damaged ({error!r}): copy it again") from error


def _files(folder: File) -> list[File]:
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if (folder / INDEX).exists():
        listed = sorted(set(_weight_map(folder / INDEX).values()))
        if odd := [name for name in listed if "/" in name or name.startswith(".")]:
            raise ForeignError(f"{folder / INDEX} names {odd[0]}: only files beside it are read")
        names = [*listed, *([STATE] if STATE in names else [])]
    for name in names:
        if not (folder / name).is_file():
            raise ForeignError(f"{folder / name} is missing; {folder / INDEX} lists it: copy it")
    return [folder / name for name in names]


def _weight_map(index: File) -> dict[str, str]:
    try:
        found = json.loads(index.read_bytes())["weight_map"]
        if not all(isinstance(name, str) for pair in found.items() for name in pair):
            raise TypeError("a name is no text")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForeignError(f"{index} is no index (weight_map: {error!r}): copy it again") from error
    return dict(found)


def _compare(index: File, headers: Sequence[_Header]) -> None:
    listed = _weight_map(index)
    there = {
        name: File(header.file).name
        for header in headers
        if File(header.file).name != STATE
        for name in header.entries
    }
    for name in sorted(listed.keys() | there.keys()):
        if listed.get(name) != there.get(name):
            raise ForeignError(
                f"{index}: {name} is in {listed.get(name, 'no file')} by it, and in "
                f"{there.get(name, 'none of them')}: copy index and files of one save"
            )


def _header(file: str) -> _Header:
    size = File(file).stat().st_size
    with File(file).open("rb") as stream:
        begin = stream.read(_LENGTH.size)
        length = _LENGTH.unpack(begin)[0] if len(begin) == _LENGTH.size else 0
        if not 0 < length <= min(_LARGEST, size - _LENGTH.size):
            raise ForeignError(f"{file}: a header of {length} bytes in {size}: copy the file again")
        text = stream.read(length)
    try:
        fields = json.loads(text, object_pairs_hook=_once)
        meta = {str(key): str(value) for key, value in fields.pop(_META, {}).items()}
        entries = {name: _entry(entry) for name, entry in fields.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForeignError(f"{file}: its header is damaged ({error!r}): copy it again") from error
    stated = meta.get(_OWN)
    if stated is not None and stated != _hash_of(text.replace(stated.encode(), _ZEROS.encode(), 1)):
        raise ForeignError(f"{file}: its header differs from its checksum: copy it again")
    data = _LENGTH.size + length
    _check(file, entries, size - data)
    return _Header(file=file, data=data, entries=entries, meta=meta)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _entry(fields: Any) -> _Entry:
    begin, end = fields["data_offsets"]
    shape = tuple(int(number) for number in fields["shape"])
    if fields["dtype"] not in _DTYPES or min(shape, default=0) < 0:
        raise ValueError(f"dtype {fields['dtype']!r}, shape {shape}")
    return _Entry(dtype=_DTYPES[fields["dtype"]], shape=shape, begin=int(begin), end=int(end))


def _check(file: str, entries: Mapping[str, _Entry], size: int) -> None:
    """Raise `ForeignError` unless the tensors tile the data, as the format asks."""
    at = 0
    for name, entry in sorted(entries.items(), key=lambda pair: (pair[1].begin, pair[1].end)):
        due = math.prod(entry.shape) * width(entry.dtype)
        if entry.begin != at or entry.end - entry.begin != due:
            raise ForeignError(
                f"{file}: {name} has bytes {entry.begin} to {entry.end}, where {due} bytes from "
                f"{at} on are due: copy the file again"
            )
        at = entry.end
    if at != size:
        raise ForeignError(f"{file}: {size} bytes of tensors, not {at}: copy the file again")


def _tensors(header: _Header) -> list[ForeignTensor]:
    try:
        paths = json.loads(header.meta.get(_PATHS, "{}"))
        hashes = json.loads(header.meta.get(_HASHES, "{}"))
    except ValueError as error:
        raise ForeignError(f"{header.file}: its {_META} is damaged: copy it again") from error
    found = []
    for name, entry in header.entries.items():
        path = tuple(paths.get(name, ("model", name)))
        reader = partial(_read, header, name, entry, hashes.get(name))
        found.append(whole(path, entry.dtype, entry.shape, f"{header.file}: {name}", reader))
    return found


def _read(header: _Header, name: str, entry: _Entry, stated: str | None) -> torch.Tensor:
    import torch

    dtype, size = getattr(torch, entry.dtype), entry.end - entry.begin
    body = bytearray(size)
    with File(header.file).open("rb") as stream:
        stream.seek(header.data + entry.begin)
        done = stream.readinto(body)
    if done != size or (stated is not None and _hash_of(body) != stated):
        raise ForeignError(f"{header.file}: {name} differs from its checksum: it is damaged")
    return torch.frombuffer(body, dtype=dtype) if size else torch.empty(entry.shape, dtype=dtype)


def _hash_of(data: bytes | bytearray | memoryview) -> str:
    return f"{hash64(memoryview(data)):016x}"


def write(found: Checkpoint, folder: File, progress: Progress) -> None:
    """Write a directory that Hugging Face's loaders read, and this module reads exactly.

    Weights are in model.safetensors, or in files of at most `SHARD_BYTES` with an index; all else
    is in training_state.safetensors. Raises `ForeignError`, OSError; the caller removes the folder.
    """
    odd = [one for one in found.tensors if one.dtype not in _NAMES]
    if odd:
        raise ForeignError(f"{odd[0].name}: safetensors has no dtype {odd[0].dtype}")
    weights = [one for one in found.tensors if one.path[0] == "model"]
    others = [one for one in found.tensors if one.path[0] != "model"]
    shards = _split(weights)
    names = {one.name: ".".join(map(str, one.path[1:])) for one in weights}
    weight_map = dict[str, str]()
    for number, shard in enumerate(shards, 1):
        file = "model.safetensors"
        if len(shards) > 1:
            file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= {names[one.name]: file for one in shard}
        _write_file(folder / file, {names[one.name]: one for one in shard}, {}, progress)
    if len(shards) > 1:
        total = sum(one.bytes for one in weights)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    if others or found.values:
        _write_file(folder / STATE, {one.name: one for one in others}, found.values, progress)


def _split(tensors: Sequence[ForeignTensor]) -> list[list[ForeignTensor]]:
    shards: list[list[ForeignTensor]] = []
    room = 0
    for tensor in tensors:
        if not shards or tensor.bytes > room:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(tensor)
        room -= tensor.bytes
    return shards


def _write_file(
    file: File, tensors: Mapping[str, ForeignTensor], values: Mapping[Path, Any], progress: Progress
) -> None:
    """Write the bytes, then the header, which then knows their hashes; its length is known."""
    blank = dict.fromkeys(tensors, _ZEROS)
    length = len(_header_text(tensors, values, blank))
    hashes = dict[str, str]()
    with file.open("xb") as stream:
        stream.seek(_LENGTH.size + length)
        for name, tensor in tensors.items():
            body = bytes_of(tensor.load())
            hashes[name] = _hash_of(body)
            stream.write(body)
            progress(len(body))
            del body  # before the next tensor is read
        text = _header_text(tensors, values, hashes)
        text = text.replace(_own(_ZEROS), _own(_hash_of(text)), 1)
        stream.seek(0)
        stream.write(_LENGTH.pack(length) + text)
        stream.flush()
        os.fsync(stream.fileno())


def _own(number: str) -> bytes:
    return f'"{_OWN}":"{number}"'.encode()


def _header_text(
    tensors: Mapping[str, ForeignTensor], values: Mapping[Path, Any], hashes: Mapping[str, str]
) -> bytes:
    paths = {name: one.path for name, one in tensors.items() if one.path != ("model", name)}
    meta = {_OWN: _ZEROS, "format": "pt", _HASHES: json.dumps(hashes), _PATHS: json.dumps(paths)}
    if values:
        meta[_VALUES] = json.dumps([[path, to_json(value)] for path, value in values.items()])
    fields: dict[str, Any] = {_META: meta}
    at = 0
    for name, one in tensors.items():
        span = [at, at + one.bytes]
        fields[name] = {"dtype": _NAMES[one.dtype], "shape": one.shape, "data_offsets": span}
        at += one.bytes
    text = json.dumps(fields, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)
