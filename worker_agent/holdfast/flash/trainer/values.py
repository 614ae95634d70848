"""Bytes of torch.save: values that are loaded as data and never run, tensors' framing.

Belongs here: the proof that a value can be loaded so, without a load at each save; the framing that
torch.save puts around a tensor, obtained without saving any values. A DCP file is one such record
after another. The framing depends on dtype and sizes only, so it is written into an arena once per
layout, and later saves replace the values in between.
"""

from __future__ import annotations

import ctypes
import io
import sys
from collections import Counter, OrderedDict, UserDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from struct import pack
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.trainer.leaves import StateError

if TYPE_CHECKING:
    import torch


_SIMPLE: Final = (int, float, str, bool, type(None))
_MOST_BITS: Final = 2039
"""Bits of a whole number: torch loads none with more than 255 bytes as data."""
_PLAIN: Final = "numbers, text, tensors, and lists, tuples and dicts of them"


_MOST_COMPARED: Final = 2**16
"""Bytes of a tensor that is compared with its last value: a comparison takes microseconds, while
torch.save takes a hundred. States of random generators are such; most stand still."""


def form_of(value: Any) -> Any:
    """Return what is equal for two values only if they encode alike: 1, 1.0 and True do not.

    A new object, equal to nothing, for a value of which that is not known.
    """
    try:
        return _form_of(value)
    except RecursionError:  # it contains itself, or is very deep
        return object()


def _form_of(value: Any) -> Any:
    kind = type(value)
    if kind in (int, str, type(None)):
        return value
    if kind is float:
        return pack("d", value)  # 1.0 == 1, -0.0 == 0.0, and NaN != NaN
    if isinstance(value, _SIMPLE):
        return kind, repr(value)  # True == 1
    if kind is dict:
        return kind, [(_form_of(key), _form_of(item)) for key, item in value.items()]
    if kind in (list, tuple):
        return kind, [_form_of(item) for item in value]
    if _is_comparable(value):
        return value.dtype, value.shape, ctypes.string_at(value.data_ptr(), value.nbytes)
    return object()


def _is_comparable(value: Any) -> bool:
    """Return True if equal values have equal bytes: small tensors of whole numbers, not strided."""
    import torch

    return (
        type(value) is torch.Tensor
        and value.dtype in (torch.uint8, torch.int64)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.is_contiguous()
        and value.nbytes <= _MOST_COMPARED
    )


def kinds_of(value: Any) -> set[type | str]:
    """Return the kinds of all objects in a value: only they decide whether it can be loaded."""
    return {_kind(one) for one in _all_in(value)}


def _all_in(value: Any) -> Iterator[Any]:
    """Yield all objects in a value, each container once: a container may contain itself."""
    seen, left = set[int](), [value]
    while left:
        one = left.pop()
        if isinstance(one, (dict, list, tuple, set)):
            if id(one) in seen:
                continue
            seen.add(id(one))
            left += [*one.keys(), *one.values()] if isinstance(one, dict) else one
        yield one


def _kind(one: Any) -> type | str:
    """Return the class, or a word for a special case that torch may refuse to load."""
    import torch

    kind = type(one)
    if kind is int and one.bit_length() > _MOST_BITS:
        return f"a whole number of {one.bit_length()} bits, of which {_MOST_BITS} can be loaded"
    if kind is torch.Tensor and (one.layout is not torch.strided or one.is_nested):
        return f"a {'nested ' if one.is_nested else ''}tensor of layout {one.layout}"
    return kind


def has_shards(kinds: Iterable[type | str]) -> bool:
    """Return True if DTensors are among the kinds of a value: their bytes differ on each rank."""
    module = sys.modules.get("torch.distributed.tensor")  # not imported: no DTensor exists
    shards = getattr(module, "DTensor", None)
    return shards is not None and any(
        isinstance(kind, type) and issubclass(kind, shards) for kind in kinds
    )


def is_seen_through(kind: type | str) -> bool:
    """Return True if the content of objects of a kind is known: such a kind is proved only once."""
    import torch

    return kind in (*_SIMPLE, bytes, dict, list, tuple, set, torch.Tensor)


def _is_odd(kind: type | str) -> bool:
    """Return True if a kind may be the reason that a value is no data."""
    import torch

    others = complex, bytearray, OrderedDict, Counter, torch.Size, torch.dtype, torch.device
    return not is_seen_through(kind) and kind not in (*others, torch.nn.Parameter)


def encode_value(name: str, value: Any, *, check: bool = True) -> bytes:
    """Return a value as torch.save writes it; check: prove that it can be loaded as data.

    Raises `StateError` naming the value: loading a user's class would need trust in the file.
    """
    import torch

    file = io.BytesIO()
    try:
        torch.save(value, file)
        body = file.getvalue()
        if check:
            decode_value(name, body, kinds_of(value))
    except StateError:
        raise
    except Exception as error:  # any error of the value's own pickling
        raise StateError(
            f"{name}: {type(value).__name__} cannot be saved: {error}. Make plain data of it "
            f"({_PLAIN})"
        ) from error
    return body


def decode_value(name: str, body: bytes, kinds: Iterable[type | str] = ()) -> Any:
    """Return a value, loaded as data; raises `StateError` naming the kinds to blame."""
    import pickle

    import torch

    try:
        return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
        odd = sorted(_named(kind) for kind in kinds if _is_odd(kind))
        found = f"it holds {', '.join(odd)}" if odd else _reason(str(error))
        raise StateError(
            f"{name} is no plain data ({_PLAIN}): {found}. Convert it, or pass an object with "
            "state_dict and load_state_dict that do"
        ) from error


def _named(kind: type | str) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def _reason(text: str) -> str:
    """Return torch's reason, without its advice to trust the file."""
    lines = text.splitlines() or [""]
    return next((line.strip() for line in lines if "WeightsUnpickler error" in line), lines[0])


@dataclass(frozen=True, slots=True)
class _Encoded:
    read: Callable[[], bytes]


class StoredValues(UserDict[str, Any]):
    """Values by name, each decoded when it is first asked for.

    A rank takes few values of other ranks, and of a thousand ranks there are many. `__getitem__`
    raises `StateError` for what is no plain data.
    """

    def __init__(self) -> None:
        super().__init__()
        self._simple: dict[bytes, Any] = {}
        """Bytes → number or text: the settings of parameter groups are mostly alike."""

    def add(self, name: str, read: Callable[[], bytes]) -> None:
        """Add a value that is still encoded."""
        self.data[name] = _Encoded(read)

    def __getitem__(self, name: str) -> Any:
        value = self.data[name]
        if isinstance(value, _Encoded):
            value = self.data[name] = self._decoded(name, value.read())
        return value

    def _decoded(self, name: str, body: bytes) -> Any:
        if body in self._simple:
            return self._simple[body]
        value = decode_value(name, body)
        if isinstance(value, _SIMPLE):
            self._simple[body] = value
        return value


ALIGN: Final = 64
"""torch aligns values inside a record to this many bytes; records begin at multiples of it too."""
_VALUES_NAME: Final = b"/data/0"


@dataclass(frozen=True, slots=True)
class Frame:
    """Bytes before and after a tensor's values."""

    before: bytes
    after: bytes
    size: int
    """Size of the values, bytes."""

    @property
    def length(self) -> int:
        """Length of the whole record, bytes."""
        return len(self.before) + self.size + len(self.after)


class _Recorder(io.RawIOBase):
    """Keeps the output of torch.save except the values, which it never touches."""

    def __init__(self, size: int) -> None:
        self.parts: list[bytes] = [b""]
        self.values = 0
        self._size = size
        self._writes_to_values = -1

    def writable(self) -> bool:
        return True

    def write(self, chunk: Any) -> int:
        view = memoryview(chunk)
        if self._writes_to_values == 0:
            if view.nbytes != self._size:
                raise StateError(f"torch.save wrote {view.nbytes} bytes where {self._size} are due")
            self.parts.append(b"")
            self.values += 1
        else:
            body = view.tobytes()
            self.parts[-1] += body
            if self._size and body.endswith(_VALUES_NAME) and not self.values:
                self._writes_to_values = 2  # padding comes first
        self._writes_to_values -= 1
        return view.nbytes


@lru_cache(2**16)
def frame_of(dtype: torch.dtype, sizes: tuple[int, ...]) -> Frame:
    """Return the frame of a contiguous tensor; raises `StateError`."""
    import torch

    # Its memory is never touched, so it costs no page, however large it is.
    empty = torch.empty(sizes, dtype=dtype, device="cpu")
    recorder = _Recorder(empty.nbytes)
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)  # values change later; torch ignores the CRC
    try:
        torch.save(empty, recorder)  # type: ignore[arg-type] # typed as IO[bytes]
    finally:
        torch.serialization.set_crc32_options(before)
    expected = 1 if empty.nbytes else 0
    if recorder.values != expected or (expected and len(recorder.parts[0]) % ALIGN):
        raise StateError(f"torch {torch.__version__} frames {dtype} {sizes} in an unknown way")
    return Frame(recorder.parts[0], recorder.parts[1] if expected else b"", empty.nbytes)
