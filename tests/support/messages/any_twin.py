"""Hypothesis strategies for every message of the wire, built from its twin's annotations."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from typing import Any

from hypothesis import strategies as st

from holdfast_wire import codec, messages

NUMBERS = {
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PROTO_TYPES = {5: "int32", 13: "uint32", 4: "uint64", 3: "int64"}


def twin_names() -> list[str]:
    """Return the name of every message."""
    return sorted(messages.MESSAGES)


@functools.cache
def twins(name: str) -> st.SearchStrategy[Any]:
    """Return values of the twin `name`."""
    kind = getattr(messages, name)
    hints = typing.get_type_hints(kind)
    descriptor: Any = codec.proto_of(name).DESCRIPTOR
    fields = {
        field.name: _values(hints[field.name], descriptor.fields_by_name.get(field.name))
        for field in dataclasses.fields(kind)
    }
    return st.builds(kind, **fields)


def _values(hint: Any, field: Any) -> st.SearchStrategy[Any]:
    origin = typing.get_origin(hint)
    if isinstance(hint, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        return st.none() | st.one_of(*(_values(part, field) for part in parts))
    if origin is tuple:
        return st.lists(_values(typing.get_args(hint)[0], field), max_size=3).map(tuple)
    if origin is not None:
        return st.dictionaries(TEXT, TEXT, max_size=3)
    if dataclasses.is_dataclass(hint):
        name: str = getattr(hint, "__name__", "")
        return st.deferred(lambda: twins(name))
    if issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    if hint is int:
        return NUMBERS[PROTO_TYPES[field.type]]
    return {
        bool: st.booleans(),
        float: st.floats(allow_nan=False),
        str: TEXT,
        bytes: st.binary(max_size=20),
    }[hint]
