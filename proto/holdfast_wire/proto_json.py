"""Protobuf's JSON of a twin, without protobuf: text for a variable of the environment."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

Twin = TypeVar("Twin")


class JsonError(ValueError):
    """A text is no such message: names the field and its value."""


def to_json(twin: Any) -> str:
    """The text of a twin; fields with their defaults are left out.

    Args:
        twin: of a class in `messages`.

    Returns:
        JSON as protobuf's own writes and reads it, but 64-bit numbers are no text.

    Raises:
        TypeError: a field is a map, bytes or of a oneof.
    """
    return json.dumps(_plain(twin), separators=(",", ":"))


def from_json(kind: type[Twin], text: str) -> Twin:
    """The twin that a text holds.

    Args:
        kind: its class.
        text: a JSON object; names of fields in camelCase or as in the `.proto` file.

    Returns:
        The twin; fields that the text does not have get their defaults.

    Raises:
        JsonError: the text is no JSON, or a field is unknown or has a wrong value. The message
            names the field, and the nearest one that there is.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise JsonError(f"it is no JSON ({error})") from error
    twin: Twin = _message(kind, found, "")
    return twin


def _plain(value: Any) -> Any:
    if isinstance(value, enum.IntEnum):
        return f"{_prefix(type(value))}{value.name}"
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if not dataclasses.is_dataclass(value):
        if not isinstance(value, bool | int | float | str):
            raise TypeError(f"{value!r} has no JSON here: give the message a field of its own")
        return value if not isinstance(value, float) or math.isfinite(value) else str(value)
    fields = ((one, getattr(value, one.name)) for one in dataclasses.fields(value))
    return {_camel(one.name): _plain(given) for one, given in fields if given != one.default}


def _message(kind: type[Any], found: Any, where: str) -> Any:
    if not isinstance(found, Mapping):
        raise JsonError(f"{where or 'it'} is {found!r}: expected an object of {kind.__name__}")
    hints = typing.get_type_hints(kind)
    names = {_camel(name): name for name in hints}
    given = {}
    for key, value in found.items():
        name = names.get(key, key)
        if name not in hints:
            near = difflib.get_close_matches(key, names, n=1) or sorted(names)
            raise JsonError(f"{where}{key} is no field of {kind.__name__}: try {', '.join(near)}")
        given[name] = _value(hints[name], value, f"{where}{key}")
    return kind(**given)


def _value(hint: Any, found: Any, where: str) -> Any:
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        if not isinstance(found, list):
            raise JsonError(f"{where} is {found!r}: expected a list")
        item = typing.get_args(hint)[0]
        return tuple(_value(item, one, f"{where}[{i}]") for i, one in enumerate(found))
    if dataclasses.is_dataclass(hint):
        return _message(typing.cast("type[Any]", hint), found, f"{where}.")
    if issubclass(hint, enum.IntEnum):
        return _enum(hint, found, where)
    return _scalar(hint, found, where)


def _enum(kind: type[enum.IntEnum], found: Any, where: str) -> enum.IntEnum:
    names = {f"{_prefix(kind)}{one.name}": one for one in kind}
    if found not in names:
        raise JsonError(f"{where} is {found!r}: expected one of {', '.join(names)}")
    return names[found]


def _scalar(kind: type[Any], found: Any, where: str) -> Any:
    if kind is int and isinstance(found, str) and re.fullmatch(r"-?\d{1,20}", found):
        return int(found)  # protobuf's own writes 64-bit numbers so
    if kind is float and found in {"nan", "inf", "-inf", "NaN", "Infinity", "-Infinity"}:
        return float(found)
    takes = (int, float) if kind is float else (kind,)
    if not isinstance(found, takes) or (isinstance(found, bool) and kind is not bool):
        raise JsonError(f"{where} is {found!r}: expected {_WORDS[kind]}")
    return kind(found)


_WORDS: Mapping[type[Any], str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}


def _prefix(kind: type[enum.IntEnum]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).upper() + "_"


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
