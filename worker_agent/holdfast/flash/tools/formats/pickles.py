"""Pickles of others, read in a process without rights (`pickle_child`), as plain data."""

from __future__ import annotations

import base64
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, Final, Self, TypeVar

from holdfast.flash.tools.formats.foreign import ForeignError

_CHILD: Final = Path(__file__).with_name("pickle_child.py")
_LENGTH: Final = Struct("<Q")
_LARGEST: Final = 2**30
"""Bytes of a pickle, at most. Tensors are no part of it."""
_NUMPY_SCALAR: Final = re.compile(r"numpy\._?core\.multiarray\.scalar")
_NUMBERS: Final = {
    kind: Struct(f"<{code}")
    for kind, code in zip(
        ("f8", "f4", "f2", "b1", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1"),
        "dfe?qihbQIHB",
        strict=True,
    )
}
"""Types of numpy's scalars that have a number of Python."""
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor in an archive: a strided view of one record."""

    key: str
    dtype: str
    at: int
    """First element in the record."""
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.size)


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """An object of a class that was not run; each is another key of a dict."""

    name: str
    """Module and name of the class."""
    args: tuple[Any, ...]
    state: Any

    def field(self, name: str) -> Any:
        """Return an attribute; raises KeyError."""
        for part in self.state if isinstance(self.state, tuple) else (self.state,):
            if isinstance(part, Mapping) and name in part:
                return part[name]
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class DtypeName:
    """A dtype of torch."""

    name: str


class Pickles:
    """A process that unpickles; it starts with the first pickle."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        child.wait()

    def read(self, body: bytes | bytearray, where: str) -> Any:
        """Return a pickle as data: containers, numbers, `TensorRef`, `Opaque`, `DtypeName`.

        where: names the file in an error. Raises `ForeignError`.
        """
        if len(body) > _LARGEST:
            raise ForeignError(f"{where}: a pickle of {len(body)} bytes, {_LARGEST} are read")
        answer = self._ask(body)
        if "error" in answer:
            raise ForeignError(
                f"{where} cannot be read as data: {answer['error']}. Copy it again; if it is "
                "whole, save it without objects of your own"
            )
        return _decode(answer["value"])

    def _ask(self, body: bytes | bytearray) -> dict[str, Any]:
        if self._child is None:
            command = [sys.executable, "-I", "-S", str(_CHILD)]
            pipe = subprocess.PIPE
            # In a group of its own, it is not told of Ctrl-C; it ends when its pipe is closed.
            self._child = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, env={}, process_group=0
            )
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None and stdout is not None  # noqa: S101, PT018 - both are pipes
        try:
            stdin.write(_LENGTH.pack(len(body)))
            stdin.write(body)
            stdin.flush()
            header = stdout.read(_LENGTH.size)
            text = stdout.read(_LENGTH.unpack(header)[0]) if len(header) == _LENGTH.size else b""
            found: dict[str, Any] = json.loads(text)
        except (OSError, ValueError):
            self.close()
            return {"error": "the process that reads it ended: it needs too much memory or time"}
        return found


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, body),) = value.items()
    return _DECODERS[kind](body)


def _tensor_of(body: list[Any]) -> TensorRef:
    key, dtype, at, size, stride = body
    return TensorRef(key, dtype, at, tuple(size), tuple(stride))


def _opaque_of(body: list[Any]) -> Any:
    name, args, state = body
    made = Opaque(name, tuple(map(_decode, args)), _decode(state))
    return made if _NUMPY_SCALAR.fullmatch(name) is None else _number(made)


def _number(made: Opaque) -> Any:
    """Return a scalar of numpy, such as a loss, as a number; other ones stay what they are."""
    match made.args:
        case (
            Opaque(name="numpy.dtype", args=(str(kind), *_), state=(_, "<" | "|", *_)),
            bytes(at),
        ):
            form = _NUMBERS.get(kind)
            if form is not None and form.size == len(at):
                return form.unpack(at)[0]
    return made


_DECODERS: Final[dict[str, Callable[[Any], Any]]] = {
    "l": lambda body: [_decode(one) for one in body],
    "t": lambda body: tuple(_decode(one) for one in body),
    "s": lambda body: {_hashable(_decode(one)) for one in body},
    "d": lambda body: {_hashable(_decode(key)): _decode(one) for key, one in body},
    "b": base64.b64decode,
    "c": lambda body: complex(*body),
    "y": DtypeName,
    "T": _tensor_of,
    "o": _opaque_of,
}


def _hashable(key: Any) -> Any:
    """Return a key of a dict, or an element of a set: a frozen set was read as a set."""
    if isinstance(key, tuple):
        return tuple(map(_hashable, key))
    return frozenset(key) if isinstance(key, set) else key


def plain(value: Any, *tensors: type) -> bool:
    """Return True if data has nothing but numbers, text and containers of them.

    tensors: further types that it may have.
    """
    if isinstance(value, Mapping):
        return all(plain(key) and plain(one, *tensors) for key, one in value.items())
    if isinstance(value, list | tuple | set):
        return all(plain(one, *tensors) for one in value)
    known = bool | int | float | str | bytes | complex
    return value is None or isinstance(value, (known, *tensors))


def replaced(value: Any, kind: type[_Kind], by: Callable[[_Kind], Any]) -> Any:
    """Return data with another value in the place of each object of a kind."""
    if isinstance(value, kind):
        return by(value)
    if isinstance(value, Mapping):
        return {key: replaced(one, kind, by) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(replaced(one, kind, by) for one in value)
    return value
