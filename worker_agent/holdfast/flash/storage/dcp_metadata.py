"""Writes DCP's `.metadata`, a pickle of torch's classes, without torch.

An agent has no torch, and a coordinator must not wait for one. Only writing is here: Holdfast loads
by its own manifest, never by this file. `holdfast checkpoint verify` compares the file with the
output of this module, so another output needs another format number of the manifest. The opcodes
are those of pickle protocol 2. The classes and their fields are those of
torch.distributed.checkpoint from torch 2.4 on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from holdfast.flash.memory.shard_table import Box, ShardTable, TensorItem

_DCP: Final = "torch.distributed.checkpoint.metadata"
_FILES: Final = "torch.distributed.checkpoint.filesystem"
_CONTIGUOUS: Final = 0
"""torch's _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT."""


def file_name(rank: int) -> str:
    """Return the name of a rank's file in a checkpoint."""
    return f"__{rank}_0.distcp"


class _PickleWriter:
    """Appends opcodes; globals and names are written once and referred to afterwards."""

    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x02")
        self._known: dict[tuple[str, str], int] = {}

    def raw(self, code: bytes) -> None:
        self.out += code

    def _remember(self, key: tuple[str, str], code: bytes) -> None:
        number = self._known.get(key)
        if number is not None:
            self.out += b"j" + struct.pack("<I", number)
            return
        self._known[key] = len(self._known)
        self.out += code + b"r" + struct.pack("<I", len(self._known) - 1)

    def named(self, module: str, name: str) -> None:
        self._remember((module, name), b"c" + f"{module}\n{name}\n".encode())

    def put(self, *values: str | int | None) -> None:
        for value in values:
            if isinstance(value, str):
                body = value.encode("utf-8", "surrogatepass")
                self._remember(("", value), b"X" + struct.pack("<I", len(body)) + body)
            elif value is None:
                self.out += b"N"
            elif -(2**31) <= value < 2**31:
                self.out += b"J" + struct.pack("<i", value)
            else:
                body = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
                self.out += b"\x8a" + bytes([len(body)]) + body

    def new(self, module: str, name: str) -> None:
        self.named(module, name)
        self.raw(b")\x81")

    def size(self, numbers: Sequence[int]) -> None:
        """Write a torch.Size of the numbers."""
        self.named("torch", "Size")
        self.raw(b"((")
        self.put(*numbers)
        self.raw(b"ttR")


def metadata_pickle(shards: Iterable[tuple[ShardTable, Sequence[int]]]) -> bytes:
    """Return the bytes of `.metadata` for these tables, each with the lengths of its byte items."""
    tensors: dict[str, list[tuple[TensorItem, int]]] = {}
    values: dict[str, tuple[int, int, int]] = {}
    paths: dict[str, tuple[str | int, ...]] = {}
    for table, lengths in shards:
        spans = table.spans(lengths)[len(table.tensors) :]
        for item in table.tensors:
            if not item.tail:
                tensors.setdefault(item.name, []).append((item, table.rank))
        for value, (at, length) in zip(table.byte_items, spans, strict=True):
            if not value.tail:
                values.setdefault(value.name, (table.rank, at, length))
        paths.update(table.paths)
    unique = {name: _one_of_each_box(parts) for name, parts in sorted(tensors.items())}
    writer = _PickleWriter()
    _metadata(writer, unique, values, paths)
    return bytes(writer.out)


def _one_of_each_box(parts: Sequence[tuple[TensorItem, int]]) -> list[tuple[TensorItem, int]]:
    by_box: dict[Box, tuple[TensorItem, int]] = {}
    for item, rank in sorted(parts, key=lambda part: (part[0].offsets, part[1])):
        by_box.setdefault(item.box, (item, rank))
    return list(by_box.values())


def _metadata(
    writer: _PickleWriter,
    tensors: Mapping[str, Sequence[tuple[TensorItem, int]]],
    values: Mapping[str, tuple[int, int, int]],
    paths: Mapping[str, tuple[str | int, ...]],
) -> None:
    writer.new(_DCP, "Metadata")
    writer.raw(b"}(")
    writer.put("state_dict_metadata")
    _kinds(writer, tensors, values)
    writer.put("planner_data")
    _planner_data(writer, {name: paths[name] for name in [*tensors, *values] if name in paths})
    writer.put("storage_data")
    writer.raw(b"}(")
    for name, parts in tensors.items():
        for index, (item, rank) in enumerate(parts):
            _index(writer, name, item.offsets, index)
            _place(writer, rank, item.at, item.length)
    for name, (rank, at, length) in values.items():
        _index(writer, name, None, None)
        _place(writer, rank, at, length)
    writer.raw(b"u")
    writer.put("storage_meta", None, "version", None)
    writer.raw(b"ub.")


def _kinds(
    writer: _PickleWriter,
    tensors: Mapping[str, Sequence[tuple[TensorItem, int]]],
    values: Mapping[str, tuple[int, int, int]],
) -> None:
    writer.raw(b"}(")
    for name, parts in tensors.items():
        writer.put(name)
        _tensor(writer, [item for item, _ in parts])
    for name in values:
        writer.put(name)
        writer.new(_DCP, "BytesStorageMetadata")
    writer.raw(b"u")


def _tensor(writer: _PickleWriter, parts: Sequence[TensorItem]) -> None:
    writer.new(_DCP, "TensorStorageMetadata")
    writer.raw(b"}(")
    writer.put("properties")
    writer.new(_DCP, "TensorProperties")
    writer.raw(b"(")  # fields: dtype, layout, requires_grad, memory format, pinned
    writer.named("torch", parts[0].dtype)
    writer.named("torch.serialization", "_get_layout")
    writer.raw(b"(")
    writer.put("torch.strided")
    writer.raw(b"tR\x89")
    writer.named(_DCP, "_MEM_FORMAT_ENCODING")
    writer.raw(b"(")
    writer.put(_CONTIGUOUS)
    writer.raw(b"tR\x89tb")
    writer.put("size")
    writer.size(parts[0].shape)
    writer.put("chunks")
    writer.raw(b"](")
    for item in parts:
        writer.new(_DCP, "ChunkStorageMetadata")
        writer.raw(b"}(")
        writer.put("offsets")
        writer.size(item.offsets)
        writer.put("sizes")
        writer.size(item.sizes)
        writer.raw(b"ub")
    writer.raw(b"eub")


def _planner_data(writer: _PickleWriter, paths: Mapping[str, tuple[str | int, ...]]) -> None:
    writer.raw(b"}(")
    for name, path in paths.items():
        writer.put(name)
        writer.raw(b"(")
        writer.put(*path)
        writer.raw(b"t")
    writer.raw(b"u")


def _index(
    writer: _PickleWriter, name: str, offset: Sequence[int] | None, index: int | None
) -> None:
    """Build a MetadataIndex by its constructor: a dict key needs its hash."""
    writer.named(_DCP, "MetadataIndex")
    writer.raw(b"(")
    writer.put(name)
    if offset is None:
        writer.put(None)
    else:
        writer.size(offset)
    writer.put(index)
    writer.raw(b"tR")


def _place(writer: _PickleWriter, rank: int, at: int, length: int) -> None:
    writer.new(_FILES, "_StorageInfo")
    writer.raw(b"}(")
    writer.put("relative_path", file_name(rank), "offset", at, "length", length)
    writer.raw(b"ub")
