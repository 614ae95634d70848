"""JSON into frozen dataclasses, strictly: unknown fields and wrong types are refused by name."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

Kind = TypeVar("Kind")


class TypedJsonError(ValueError):
    """A JSON value does not fit: names the field, the value and the remedy."""


def read_dataclass(kind: type[Kind], value: Any, where: str = "") -> Kind:
    """Return `value` (an object as `json.load` gives it) as the dataclass `kind`.

    Args:
        kind: a dataclass whose annotations are bool, int, float, str, Path, an enum, a dataclass,
            a tuple of these, or any of them or None.
        value: the parsed JSON.
        where: path of the value inside the document, for error texts.

    Raises:
        TypedJsonError: a field is unknown, missing or of another type.
    """
    if not isinstance(value, dict):
        raise _wrong(value, where or "the document", "an object")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in value:
        if name not in fields:
            raise TypedJsonError(_unknown(name, where, fields))
    for name, field in fields.items():
        if name not in value and field.default is field.default_factory is dataclasses.MISSING:
            raise TypedJsonError(f"{_join(where, name)} is missing; it has no default")
    given = {name: _read(hints[name], item, _join(where, name)) for name, item in value.items()}
    return kind(**given)


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _wrong(value: Any, where: str, words: str) -> TypedJsonError:
    text = repr(value)
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return TypedJsonError(f"{where} is {shown}; it must be {words}")


def _unknown(name: str, where: str, fields: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, fields, n=1)
    remedy = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(fields))}"
    return f"{_join(where, name)} is no known field; {remedy}"


def _read(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, types.UnionType):
        part = next(part for part in typing.get_args(hint) if part is not types.NoneType)
        return None if value is None else _read(part, value, where)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise _wrong(value, where, "a list")
        item = typing.get_args(hint)[0]
        return tuple(_read(item, entry, f"{where}[{at}]") for at, entry in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return read_dataclass(typing.cast("type[Any]", hint), value, where)
    if issubclass(hint, enum.Enum):
        return _read_enum(hint, value, where)
    accepted, words = _SCALARS[hint]
    # bool is an int to Python; to a reader of the file it is not.
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise _wrong(value, where, words)
    return hint(value)


def _read_enum(hint: type[enum.Enum], value: Any, where: str) -> enum.Enum:
    for member in hint:
        if value == member.name or (value == member.value and not isinstance(value, bool)):
            return member
    raise _wrong(value, where, f"one of {', '.join(hint.__members__)}")


_SCALARS: Mapping[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
    Path: ((str,), "a path"),
}
