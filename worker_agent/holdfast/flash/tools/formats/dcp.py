"""Directories of torch.distributed.checkpoint: `.metadata`, and `__<rank>_<n>.distcp` files.

Belongs here: what torch itself writes.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path as File
from typing import TYPE_CHECKING, Any

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.storage.manifest import METADATA_NAME
from holdfast.flash.tools.formats.foreign import (
    Checkpoint,
    ForeignError,
    ForeignPart,
    ForeignTensor,
)
from holdfast.flash.tools.formats.pickles import (
    DtypeName,
    Opaque,
    Pickles,
    TensorRef,
    plain,
    replaced,
)
from holdfast.flash.tools.formats.torch_file import SIGNATURE, FileRange, TorchFile
from holdfast.flash.tools.formats.training_state import BY_NAME, Keys, of_script

if TYPE_CHECKING:
    import torch

Key = tuple[str, tuple[int, ...] | None]
"""Name, and the offsets of a tensor's box."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an item's archive lies."""

    file: str
    begin: int
    length: int


DcpBox = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes."""


@dataclass(frozen=True, slots=True)
class DcpTensor:
    """A tensor of `.metadata`."""

    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[DcpBox, ...]


class Directory:
    """The items of a directory by their names in it."""

    def __init__(self, place: str, pickles: Pickles) -> None:
        """Read `.metadata`; raises `ForeignError`, OSError."""
        self.place, self._pickles = place, pickles
        self._file = f"{place}/{METADATA_NAME}"
        metadata = pickles.read(File(self._file).read_bytes(), self._file)
        self.tensors: dict[str, DcpTensor] = {}
        self.values: set[str] = set()
        self._sorted: dict[str, list[DcpBox]] = {}
        try:
            self._kinds(_mapping(metadata.field("state_dict_metadata")))
            self._places = dict(self._stored(_mapping(metadata.field("storage_data"))))
            data = metadata.field("planner_data")
            self.paths: dict[str, Path] = {k: tuple(v) for k, v in (data or {}).items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ForeignError(
                f"{self._file} is damaged, or of an unknown torch ({error!r}): copy it again"
            ) from error
        self._compare()
        self._refuse_overlaps()

    def _kinds(self, found: Mapping[Any, Any]) -> None:
        for name, one in found.items():
            if one.name.endswith(".TensorStorageMetadata"):
                self.tensors[name] = _tensor(one)
            elif one.name.endswith(".BytesStorageMetadata"):
                self.values.add(name)
            else:
                raise ValueError(f"{name} is a {one.name}")

    def _stored(self, found: Mapping[Any, Any]) -> Iterable[tuple[Key, Place]]:
        for index, info in found.items():
            name, offset = _field(index, "fqn", 0), _field(index, "offset", 1, None)
            if _field(info, "transform_descriptors", 3, None):
                raise ValueError(f"{name} is compressed or transformed")
            file = info.field("relative_path")
            if not isinstance(file, str) or "/" in file or file in ("", ".", ".."):
                raise ValueError(f"{name} lies in {file!r}, outside the directory")
            place = Place(
                f"{self.place}/{file}", int(info.field("offset")), int(info.field("length"))
            )
            if place.begin < 0 or place.length < 0:
                raise ValueError(f"{name} has {place.length} bytes from byte {place.begin} on")
            yield (name, None if offset is None else tuple(offset)), place

    def _compare(self) -> None:
        """Compare the lists of names: a damaged name is in one of them only."""
        listed: set[Key] = {(name, at) for name, one in self.tensors.items() for at, _ in one.boxes}
        listed |= {(name, None) for name in self.values}
        scalars = {(name, at) for name, at in listed if at == ()}
        there = {*self._places}
        odd: set[Key] = (listed - there - scalars) | {
            key for key in there - listed if (key[0], ()) not in scalars
        }
        names = {*self.tensors, *self.values}
        if self.paths:
            odd |= {(name, None) for name in names.symmetric_difference(self.paths)}
            joined = {".".join(map(str, path)): name for name, path in self.paths.items()}
            odd |= {(name, None) for text, name in joined.items() if text != name}
        if odd:
            name, at = min(odd, key=repr)
            raise ForeignError(
                f"{self._file}: {name} at {at} is not in all of its lists: copy it again"
            )

    def _refuse_overlaps(self) -> None:
        """Refuse two items that share bytes: torch writes each behind the one before.

        An archive is found from its end, so a damaged length leads to another item's state.
        """
        placed = sorted(self._places.items(), key=lambda item: (item[1].file, item[1].begin))
        for ((name, _), one), ((other, _), behind) in pairwise(placed):
            if one.file == behind.file and behind.begin < one.begin + one.length:
                raise ForeignError(
                    f"{self._file}: {name} and {other} share bytes of {one.file}: copy it again"
                )

    def path(self, name: str) -> Path:
        """Return an item's keys in the nested state."""
        return self.paths.get(name, (name,))

    def tensor(self, name: str, path: Path) -> ForeignTensor:
        """Return a tensor under a name of torch's."""
        one = self.tensors[name]
        parts = tuple(
            ForeignPart(
                offsets=offsets,
                sizes=sizes,
                where=f"{self._place(name, offsets).file}: {name} at {offsets}",
                read=partial(self._read, name, offsets, sizes),
            )
            for offsets, sizes in one.boxes
        )
        return ForeignTensor(path=path, dtype=one.dtype, shape=one.shape, parts=parts)

    def _place(self, name: str, offsets: tuple[int, ...]) -> Place:
        return self._places.get((name, offsets)) or self._places[name, None]

    def _read(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
        file, ref = self._opened(name, offsets, sizes)
        return file.tensor(ref)

    def flat(self, name: str, begin: int, count: int, *, checked: bool = True) -> torch.Tensor:
        """Return a range of a tensor of one dimension, whose boxes tile it.

        checked: compare the checksums of its records, and for that read all of them.
        """
        import torch

        one = self.tensors[name]
        if name not in self._sorted:
            self._sorted[name] = sorted(one.boxes)
        boxes = self._sorted[name]
        values, end = torch.empty(count, dtype=getattr(torch, one.dtype)), begin + count
        number = max(0, bisect_right(boxes, ((begin,), (one.shape[0],))) - 1)
        while number < len(boxes) and boxes[number][0][0] < end:
            (at,), (size,) = boxes[number]
            first, last = max(at, begin), min(at + size, end)
            if first < last:
                piece = self._range(name, boxes[number], first - at, last - first, checked=checked)
                values[first - begin : last - begin] = piece
            number += 1
        return values

    def head(self, name: str, number: int, count: int) -> torch.Tensor:
        """Return the first elements of a box, without a look at its checksum."""
        return self._range(name, self.tensors[name].boxes[number], 0, count, checked=False)

    def _range(
        self, name: str, box: DcpBox, begin: int, count: int, *, checked: bool
    ) -> torch.Tensor:
        """Return elements of a box in row-major order."""
        file, ref = self._opened(name, *box)
        if _is_dense(ref):
            ref = replace(ref, at=ref.at + begin, size=(count,), stride=(1,))
            return file.tensor(ref, checked=checked)
        return file.tensor(ref).view(-1)[begin : begin + count]

    def _opened(
        self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]
    ) -> tuple[TorchFile, TensorRef]:
        """Return a box's archive, and the tensor in it; raises `ForeignError` for another one."""
        place = self._place(name, offsets)
        file = self._archive(name, place)
        ref, dtype = file.state, self.tensors[name].dtype
        if not isinstance(ref, TensorRef) or ref.size != sizes or ref.dtype != dtype:
            raise ForeignError(
                f"{place.file}: at byte {place.begin} is no {dtype} {sizes} of {name}: copy the "
                "directory again"
            )
        return file, ref

    def _archive(self, name: str, place: Place) -> TorchFile:
        """Open an item's archive; raises `ForeignError` if there is none at its place."""
        try:
            with FileRange(place.file, place.begin, len(SIGNATURE)) as section:
                begin = section.read(len(SIGNATURE))
        except FileNotFoundError as error:
            raise ForeignError(
                f"{place.file} is missing: {self._file} says that {name} lies in it; copy the "
                "directory again"
            ) from error
        if begin != SIGNATURE:
            raise ForeignError(
                f"{place.file}: at byte {place.begin} is no archive of {name}: copy it again"
            )
        return TorchFile(self._pickles, place.file, place.begin, place.length)

    def value(self, name: str) -> Any:
        """Return a value that is no tensor, as data."""
        value = self.item(name)
        if not plain(value, ForeignTensor):
            file = self._places[name, None].file
            raise ForeignError(f"{file}: {name} has objects that are no data")
        return replaced(value, ForeignTensor, ForeignTensor.load)

    def item(self, name: str) -> Any:
        """Return a value with its tensors as `ForeignTensor`, and its objects as `Opaque`."""
        return self._archive(name, self._places[name, None]).with_tensors()


def _is_dense(ref: TensorRef) -> bool:
    """Return True if a tensor's elements lie one after another."""
    steps = (math.prod(ref.size[dim + 1 :]) for dim in range(len(ref.size)))
    return all(
        n == 1 or own == due for n, own, due in zip(ref.size, ref.stride, steps, strict=True)
    )


def _mapping(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"a {type(value).__name__} where a dict is due")
    return value


def _field(one: Opaque, name: str, at: int, *default: Any) -> Any:
    """Return a field of an object that was made by its constructor, or by its state."""
    if len(one.args) > at:
        return one.args[at]
    try:
        return one.field(name)
    except KeyError:
        if default:
            return default[0]
        raise


def _tensor(one: Opaque) -> DcpTensor:
    properties, shape = one.field("properties"), tuple(map(int, one.field("size")))
    dtype = properties.state[0] if isinstance(properties.state, tuple) else None
    if not isinstance(dtype, DtypeName):
        dtype = properties.field("dtype")
    boxes = tuple(
        (tuple(map(int, chunk.field("offsets"))), tuple(map(int, chunk.field("sizes"))))
        for chunk in one.field("chunks")
    )
    return DcpTensor(dtype.name, shape, boxes)


def read(place: str, pickles: Pickles, keys: Keys = BY_NAME) -> Checkpoint:
    """Return a directory that a script of torch wrote; raises `ForeignError`, OSError."""
    layout = f"torch.distributed.checkpoint, {files_of(place)} files"
    found = Checkpoint(place=place, format="dcp", framework="torch", layout=layout)
    return of_script(found, _nested(Directory(place, pickles)), keys)


def _nested(found: Directory) -> Mapping[str, Any]:
    """Return the state as it was before it was flattened; raises `ForeignError`."""
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    flat: dict[str, Any] = {name: found.tensor(name, (name,)) for name in sorted(found.tensors)}
    flat |= {name: found.item(name) for name in sorted(found.values)}
    try:
        nested: Mapping[str, Any] = unflatten_state_dict(flat, {n: found.path(n) for n in flat})
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ForeignError(
            f"{found.place}/{METADATA_NAME}: its planner_data is damaged ({error!r}): copy it again"
        ) from error
    return nested


def files_of(place: str) -> int:
    """Return the number of data files in a directory."""
    return sum(name.endswith(".distcp") for name in os.listdir(place))  # noqa: PTH208
