"""A process that unpickles without rights: `python -I -S pickle_child.py`. Only the stdlib.

What protects:

- No name of a pickle is ever imported. Each name that is allowed stands for a class or function of
  this file, which keeps its arguments as data; other names end the reading.
- Before the first byte is read, the limit of open files is 0: no file can be opened and no socket
  made, whoever asks. Where the system permits it, the process also leaves the network (a network
  namespace of its own). It has only its three pipes, 4 GiB of memory and ten minutes of CPU.

It reads frames (8 bytes of length, a pickle) from stdin, and answers each with a frame of JSON.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import ctypes
import io
import json
import pickle
import resource
import struct
import sys
import time
from typing import Any, ClassVar, Final, Self

_LENGTH: Final = struct.Struct("<Q")
_MEMORY: Final = 2**32
_CPU_SECONDS: Final = 600
_LIMIT_SECONDS: Final = 10
_LIMIT_BYTES_PER_SECOND: Final = 2**17
"""CPU time for a pickle, and for each of its bytes: real ones take a fiftieth of that."""
_DEPTH: Final = 100
_NODES: Final = 20_000_000
_AGAIN: Final = 64
"""Entries of containers that stand in several places, for each byte of the pickle: a few bytes can
name a container twice, again and again, and so stand for more than any memory holds."""
_MOST_AGAIN: Final = 2_000_000
_FEW_AGAIN: Final = 10_000
_NEW_NETWORK: Final = 0x40000000
_NEW_USER: Final = 0x10000000

_DTYPES: Final = {
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
}  # fmt: skip
STORAGES: Final = {
    "BoolStorage": "bool", "ByteStorage": "uint8", "CharStorage": "int8", "ShortStorage": "int16",
    "IntStorage": "int32", "LongStorage": "int64", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "FloatStorage": "float32", "DoubleStorage": "float64",
    "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
}  # fmt: skip
_FRAMEWORKS: Final = (
    "deepspeed.", "megatron.", "torch.distributed.checkpoint.", "torch.distributed.tensor.",
    "torch.distributed.device_mesh.", "torch.distributed._mesh_layout.",
)  # fmt: skip
"""Modules of whose classes the data is kept. No code of theirs runs."""
_OPAQUE: Final = {
    "argparse.Namespace", "pathlib.PosixPath", "pathlib.Path", "torch.device",
    "numpy.ndarray", "numpy.dtype", "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct", "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar", "torch.serialization._get_layout", "_io.BytesIO", "io.BytesIO",
    "torch.Tensor", "torch.nn.parameter.Parameter", "types.SimpleNamespace",
    "datetime.datetime", "datetime.date", "datetime.timedelta", "collections.deque",
}  # fmt: skip


_RENAMED: Final = {"__builtin__": "builtins"}
"""Modules as protocol 2 calls them, which torch.save uses."""


class ForeignObject:
    """An object of a class that is not run: its name, arguments and state."""

    name: ClassVar[str] = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keep the arguments."""
        made = super().__new__(cls)
        made.args, made.state, made.entries = [*args, *kwargs.values()], None, []
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args: list[Any]
        self.state: Any
        self.entries: list[tuple[Any, Any]]

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries.append((key, value))

    def append(self, value: Any) -> None:
        """Take an element of a list's subclass."""
        self.entries.append((len(self.entries), value))


class Dtype:
    """A dtype of torch, or the type of a storage."""

    def __init__(self, name: str) -> None:
        self.name = name


class RecordRef:
    """A record of the archive that has a tensor's bytes."""

    def __init__(self, key: str, dtype: str | None, count: int) -> None:
        self.key, self.dtype, self.count = key, dtype, count


class Tensor:
    """A view of a storage."""

    def __init__(self, storage: Any, at: Any, size: Any, stride: Any, dtype: str | None) -> None:
        if not isinstance(storage, RecordRef) or not dtype:
            raise pickle.UnpicklingError("a tensor without a storage")
        self.storage, self.dtype = storage, dtype
        self.at, self.size, self.stride = int(at), _numbers(size), _numbers(stride)


def _numbers(values: Any) -> list[int]:
    if not all(isinstance(value, int) for value in values):
        raise pickle.UnpicklingError("a tensor's shape is no list of numbers")
    return list(values)


def _tensor(storage: Any, at: Any, size: Any, stride: Any, *more: Any) -> Tensor:
    # more: requires_grad, hooks, and a dict of the conjugate and negative bits.
    if len(more) > 2 and more[2]:
        raise pickle.UnpicklingError("a tensor that is a conjugate or negative view: clone() it")
    return Tensor(storage, at, size, stride, getattr(storage, "dtype", None))


def _tensor_of_dtype(storage: Any, at: Any, size: Any, stride: Any, *more: Any) -> Tensor:
    # more: requires_grad, hooks, dtype, ...
    return Tensor(storage, at, size, stride, getattr(more[2], "name", None))


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _wrapper(*_: Any) -> None:
    """Stand for torch's _rebuild_wrapper_subclass: a tensor whose data is in its attributes."""
    raise pickle.UnpicklingError("a wrapped tensor without its type")


def _of_type(make: Any, kind: Any, args: Any, state: Any) -> Any:
    """Do as torch's _rebuild_from_type_v2: a tensor with attributes, which are left out.

    A DTensor is no tensor, since it has only a part of one: it is an object with that part.
    """
    if make is _wrapper:
        if not isinstance(kind, type) or not issubclass(kind, ForeignObject):
            raise pickle.UnpicklingError("a wrapped tensor of an unknown kind")
        made, held = kind(), state if isinstance(state, tuple) else (state,)  # with its slots
        found = [one["_local_tensor"] for one in held if one and "_local_tensor" in one]
        made.state = {"_local_tensor": found[0] if found else None}
        return made
    if make not in _CALLS.values():
        raise pickle.UnpicklingError("a tensor of an unknown kind")
    return make(*args)


def _encode(text: str, _how: str = "latin1") -> bytes:
    return text.encode("latin1")


def _bytes(body: Any = b"", *_: Any) -> bytes:
    if isinstance(body, str):
        return _encode(body)
    if not isinstance(body, bytes):  # of a number it would be that many zeros
        raise pickle.UnpicklingError("a bytearray that is not made of bytes")
    return body


def _dict(*args: Any) -> dict[Any, Any]:
    return {} if not args or not isinstance(args[-1], (dict, list)) else dict(args[-1])


_CALLS: Final[dict[str, Any]] = {
    "collections.OrderedDict": collections.OrderedDict,
    "collections.defaultdict": _dict,
    "collections.Counter": _dict,
    "builtins.set": set, "builtins.frozenset": frozenset, "builtins.complex": complex,
    "builtins.bytearray": _bytes, "_codecs.encode": _encode, "torch.Size": tuple,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_dtype,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_wrapper_subclass": _wrapper,
    "torch._tensor._rebuild_from_type_v2": _of_type,
}  # fmt: skip
_KINDS: Final = {f"builtins.{name}" for name in ("dict", "list", "int", "float", "str", "tuple")}


class Reader(pickle.Unpickler):
    """Unpickles with this file's own classes only."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._made: dict[str, type[ForeignObject]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return the object of a name; raises UnpicklingError for one that is not allowed."""
        full = f"{_RENAMED.get(module, module)}.{name}"
        if full in _CALLS:
            return _CALLS[full]
        if module in ("torch", "torch.storage"):
            if name in _DTYPES:
                return Dtype(name)
            if name in STORAGES:
                return Dtype(STORAGES[name])
            if name == "UntypedStorage":
                return Dtype("")
        if full in _OPAQUE or full in _KINDS or full.startswith(_FRAMEWORKS):
            return self._made.setdefault(
                full, type("ForeignObject", (ForeignObject,), {"name": full})
            )
        raise pickle.UnpicklingError(f"{full} is not among the names that are read")

    def persistent_load(self, pid: Any) -> RecordRef:
        """Return a reference to a record."""
        kind, storage, key, _location, count = pid
        if kind != "storage" or not isinstance(storage, Dtype) or not isinstance(key, str):
            raise pickle.UnpicklingError(f"a reference of an unknown kind: {kind!r}"[:200])
        return RecordRef(key, storage.name or None, int(count))


class Encoder:
    """Makes JSON of what was unpickled."""

    def __init__(self, size: int) -> None:
        """size: of the pickle."""
        self._left = _NODES
        self._again = min(_MOST_AGAIN, _FEW_AGAIN + _AGAIN * size)
        self._seen: set[int] = set()
        self._inside = 0
        """Number of containers around a value that were seen before."""

    def encode(self, value: Any, depth: int = 0) -> Any:
        """Return JSON values; raises UnpicklingError for what is too large or too deep."""
        self._left -= 1
        self._again -= bool(self._inside)
        if depth > _DEPTH or self._left < 0:
            raise pickle.UnpicklingError("the data is nested too deeply, or too large")
        if self._again < 0:
            raise pickle.UnpicklingError("containers stand in each other again and again")
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        is_again = id(value) in self._seen
        self._seen.add(id(value))
        self._inside += is_again
        found = self._more(value, depth + 1)
        self._inside -= is_again
        return found

    def _more(self, value: Any, depth: int) -> Any:
        if isinstance(value, (list, tuple, set, frozenset)):
            kind = {list: "l", tuple: "t"}.get(type(value), "s")
            return {kind: [self.encode(one, depth) for one in value]}
        if isinstance(value, dict):
            pairs = [[self.encode(k, depth), self.encode(v, depth)] for k, v in value.items()]
            return {"d": pairs}
        if isinstance(value, (bytes, bytearray)):
            return {"b": base64.b64encode(value).decode()}
        if isinstance(value, complex):
            return {"c": [value.real, value.imag]}
        if isinstance(value, Tensor):
            key = value.storage.key
            return {"T": [key, value.dtype, value.at, value.size, value.stride]}
        if isinstance(value, Dtype):
            return {"y": value.name}
        return self._opaque(value, depth)

    def _opaque(self, value: Any, depth: int) -> Any:
        if isinstance(value, type) and issubclass(value, ForeignObject):
            return {"o": [value.name, [], None]}
        if not isinstance(value, ForeignObject):
            raise pickle.UnpicklingError(f"a {type(value).__name__} is no data")
        state = {**dict(value.entries)} if value.entries else value.state
        args = [self.encode(one, depth) for one in value.args]
        return {"o": [value.name, args, self.encode(state, depth)]}


def _answer(body: bytes) -> dict[str, Any]:
    try:
        file = io.BytesIO(body)
        value = Encoder(len(body)).encode(Reader(file).load())
        if file.read(1):
            return {"error": "there is more behind the end of the pickle"}
    except Exception as error:  # noqa: BLE001 - the loop's top: whatever a damaged pickle causes
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    return {"value": value}


def _give_up_rights() -> None:
    with contextlib.suppress(OSError, AttributeError):  # not permitted: no socket can be made below
        libc = ctypes.CDLL(None)
        if libc.unshare(_NEW_NETWORK):  # only root may without a user namespace
            libc.unshare(_NEW_NETWORK | _NEW_USER)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def main() -> None:
    """Answer frames until stdin ends."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    _give_up_rights()
    while len(header := source.read(_LENGTH.size)) == _LENGTH.size:
        body = source.read(_LENGTH.unpack(header)[0])
        due = int(time.process_time()) + _LIMIT_SECONDS + len(body) // _LIMIT_BYTES_PER_SECOND
        resource.setrlimit(resource.RLIMIT_CPU, (min(due, _CPU_SECONDS), _CPU_SECONDS))
        text = json.dumps(_answer(body)).encode()
        target.write(_LENGTH.pack(len(text)) + text)
        target.flush()


if __name__ == "__main__":
    main()
