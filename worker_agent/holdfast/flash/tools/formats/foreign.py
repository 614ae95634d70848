"""A foreign checkpoint as torch's names: tensors that are read one at a time, and small values.

Belongs here: the values that all readers give and all writers take.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.memory.shard_table import Path, overlap

if TYPE_CHECKING:
    import torch


def width(dtype: str) -> int:
    """Return the bytes of an element; raises `ForeignError` for an unknown dtype. No torch."""
    if dtype == "bool" or dtype.startswith("float8"):
        return 1
    bits = re.fullmatch(r"(?:bfloat|float|u?int|complex)(8|16|32|64|128)", dtype)
    if bits is None:
        raise ForeignError(f"dtype {dtype!r} is not known")
    return int(bits[1]) // 8


class ForeignError(Exception):
    """A checkpoint cannot be converted. The text names file, tensor, fault and remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignPart:
    """A box of a tensor, in one file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    where: str
    """File, and the tensor's name in it."""
    read: Callable[[], torch.Tensor]
    """Returns the elements on the CPU, in any shape; raises `ForeignError` if they are damaged."""

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTensor:
    """A global tensor; its bytes stay in the files until `load`."""

    path: Path
    dtype: str
    """Name of the dtype as in torch, without the prefix."""
    shape: tuple[int, ...]
    parts: tuple[ForeignPart, ...]
    grid: tuple[int, ...] | None = None
    """Shape that the parts are boxes of; None: `shape`. A flat partition has all in one row."""

    @property
    def name(self) -> str:
        """Name in a Holdfast step."""
        return ".".join(map(str, self.path))

    @property
    def bytes(self) -> int:
        """Size of the values."""
        return math.prod(self.shape) * width(self.dtype)

    def load(self) -> torch.Tensor:
        """Return the whole tensor; raises `ForeignError` naming the part that is damaged."""
        import torch

        grid = self.shape if self.grid is None else self.grid
        self.check()
        dtype = getattr(torch, self.dtype)
        if len(self.parts) == 1:
            return self._read(self.parts[0], dtype).reshape(self.shape).contiguous()
        whole = torch.empty(grid, dtype=dtype)
        for part in self.parts:
            box = whole
            for dim, (begin, size) in enumerate(zip(part.offsets, part.sizes, strict=True)):
                box = box.narrow(dim, begin, size)
            box.copy_(self._read(part, dtype).reshape(part.sizes))
        return whole.view(self.shape)

    def _read(self, part: ForeignPart, dtype: torch.dtype) -> torch.Tensor:
        try:
            values = part.read()
        except ForeignError as error:
            if self.name in str(error):
                raise
            raise ForeignError(f"{error} ({self.name})") from error
        if values.dtype != dtype or values.numel() != part.count:
            raise ForeignError(
                f"{part.where}: {values.numel()} elements of {values.dtype}, where {part.count} of "
                f"{dtype} are due for {self.name}"
            )
        return values

    def check(self) -> None:
        """Raise `ForeignError` unless the parts tile the tensor exactly."""
        grid = self.shape if self.grid is None else self.grid
        if fault := _untiled(grid, self.parts):
            files = ", ".join(sorted({part.where for part in self.parts})[:4]) or "no file"
            raise ForeignError(
                f"{self.name}: {fault}, of {files}: are all ranks' files there, of one save?"
            )


def _untiled(grid: tuple[int, ...], parts: Sequence[ForeignPart]) -> str:
    """Return the reason why the parts do not tile a grid; empty: they do."""
    whole, covered = math.prod(grid), sum(part.count for part in parts)
    if covered != whole:
        return f"{covered} of {whole} elements are there"
    boxes = sorted((part.offsets, part.sizes) for part in parts if part.count)
    for index, box in enumerate(boxes):
        ends = zip(*box, grid, strict=True)
        if len(box[0]) != len(grid) or any(b < 0 or b + size > end for b, size, end in ends):
            return f"a part at {box[0]} of {box[1]} is not in {grid}"
        for other in boxes[index + 1 :]:
            if box[0] and other[0][0] >= box[0][0] + box[1][0]:
                break
            if overlap(box, other):
                return f"parts at {box[0]} and {other[0]} overlap"
    return ""


def whole(
    path: Path, dtype: str, shape: Sequence[int], where: str, read: Callable[[], torch.Tensor]
) -> ForeignTensor:
    """Return a tensor that one file has as a whole."""
    sizes = tuple(shape)
    part = ForeignPart(offsets=(0,) * len(sizes), sizes=sizes, where=where, read=read)
    return ForeignTensor(path=path, dtype=dtype, shape=sizes, parts=(part,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A reader's findings. Nothing but small values is in memory."""

    place: str
    format: str
    framework: str
    layout: str
    tensors: tuple[ForeignTensor, ...] = ()
    values: Mapping[Path, Any] = field(default_factory=dict)
    step: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Parallel sizes of the world that saved: "data", "tensor", "pipeline"."""
    notes: tuple[str, ...] = ()
    """Omissions, and notes for a reader."""

    @property
    def bytes(self) -> int:
        """Size of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors)


_FLOAT: Final = struct.Struct(">d")
_SEQUENCES: Final[Mapping[str, type[Any]]] = {"l": list, "t": tuple, "s": set}


def to_json(value: Any) -> Any:
    """Return JSON values for a plain value; raises `ForeignError` for an object."""
    import torch

    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"f": _FLOAT.pack(value).hex()}  # JSON has no infinity
    for kind, sequence in _SEQUENCES.items():
        if isinstance(value, sequence):
            return {kind: [to_json(one) for one in value]}
    if isinstance(value, Mapping):
        return {"d": [[to_json(key), to_json(one)] for key, one in value.items()]}
    if isinstance(value, bytes):
        return {"b": base64.b64encode(value).decode()}
    if isinstance(value, torch.Tensor):
        body = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        dtype = str(value.dtype).removeprefix("torch.")
        return {"T": [dtype, list(value.shape), base64.b64encode(body).decode()]}
    raise ForeignError(f"a {type(value).__name__} is no plain data")


def from_json(value: Any) -> Any:
    """Return the value that `to_json` made JSON of."""
    if not isinstance(value, dict):
        return value
    ((kind, body),) = value.items()
    match kind:
        case "f":
            return _FLOAT.unpack(bytes.fromhex(body))[0]
        case "l" | "t" | "s":
            return _SEQUENCES[kind](map(from_json, body))
        case "d":
            return {from_json(key): from_json(one) for key, one in body}
        case "b":
            return base64.b64decode(body)
        case _:
            return _tensor(*body)


def _tensor(dtype: str, shape: list[int], text: str) -> Any:
    import torch

    body = bytearray(base64.b64decode(text))
    kind = getattr(torch, dtype)
    flat = torch.frombuffer(body, dtype=kind) if body else torch.empty(0, dtype=kind)
    return flat.view(shape)
