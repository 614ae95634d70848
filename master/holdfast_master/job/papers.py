"""The core's working papers as JSON values, and back: what it knows beside the journal.

Belongs here: a faithful copy of every object on the desk, closed to the classes named here. Does
not belong here: the durable state (the journal has it), files, and what any field means.

Only a replay reads these: a master that starts builds its papers from the journal and the agents.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from holdfast_master.job.desk import Desk
from holdfast_wire import messages

_OURS = "holdfast_master."
_PURE = ("job.", "decide.", "inputs.")
"""Where the classes live that papers may hold; none of them does anything when it is made."""
_ELSEWHERE = frozenset({"identity", "settings", "state"})
"""Fields of the desk that are no papers: journal and configuration have them."""
_SEQUENCES: dict[type, tuple[str, Callable[[Iterable[Any]], Any]]] = {
    list: ("list", list),
    tuple: ("tuple", tuple),
    set: ("set", set),
    frozenset: ("frozenset", frozenset),
    collections.deque: ("deque", collections.deque),
}
_MAKERS = dict(_SEQUENCES.values())


class PapersError(ValueError):
    """Papers that this release cannot take up: names what is unknown."""


_TWINS = frozenset(kind for kind in vars(messages).values() if isinstance(kind, type))


def _name_of(kind: type) -> str:
    """Return the name by which papers know a class: its module's and its own."""
    if kind in _TWINS:
        return f"messages.{kind.__name__}"
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix(_OURS)
    if not (kind.__module__.startswith(_OURS) and name.startswith(_PURE)):
        raise PapersError(f"{name} is not among the classes that papers may hold")
    return name


def _class_of(name: str) -> Any:
    """Return the class of that name."""
    module, _, own = name.rpartition(".")
    if module == "messages":
        found = vars(messages).get(own)
    elif name.startswith(_PURE):
        # Whatever a desk can hold was imported with it.
        found = vars(sys.modules.get(f"{_OURS}{module}", object)).get(own)
    else:
        found = None
    if not isinstance(found, type):
        raise PapersError(f"{name} is unknown to this release; use the one that wrote it")
    return found


def take(desk: Desk) -> dict[str, Any]:
    """Return the papers: JSON values, in which messages of the wire still stand as they are.

    What can change later is copied; `finish` turns the messages into JSON values as well, and may
    do so in another thread.
    """
    copier = _Copier()
    return {name: copier.copy(getattr(desk, name)) for name in _names(desk)}


def _names(desk: Desk) -> list[str]:
    # What begins with _ is the batch that is being written, and empty between two inputs.
    names = [field.name for field in dataclasses.fields(desk)]
    return [name for name in names if name not in _ELSEWHERE and not name.startswith("_")]


def finish(message: Any) -> Any:
    """Return a message of the wire as a JSON value; for `json.dumps(default=...)`."""
    if type(message) not in _TWINS:
        raise PapersError(f"{type(message).__name__} is no message of the wire")
    fields = {f.name: _inside(getattr(message, f.name)) for f in dataclasses.fields(message)}
    return {"new": _name_of(type(message)), "id": 0, "fields": fields}


def _inside(value: Any) -> Any:
    return value if type(value) in _TWINS else _Copier().copy(value)


class _Copier:
    """Copies a graph of objects; one that is met again is named by its number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def copy(self, value: Any) -> Any:
        """Return `value` as a JSON value."""
        kind = type(value)
        if value is None or kind in {int, str, float, bool}:
            return value
        if isinstance(value, enum.Enum):
            return {"enum": _name_of(kind), "name": value.name}
        if kind in _TWINS:
            return value
        if kind in _SEQUENCES:
            return {_SEQUENCES[kind][0]: [self.copy(item) for item in value]}
        if kind in {dict, types.MappingProxyType}:
            return {"dict": [[self.copy(key), self.copy(item)] for key, item in value.items()]}
        if kind is bytes:
            return {"bytes": value.hex()}
        return self._object(value)

    def _object(self, value: Any) -> Any:
        name = _name_of(type(value))
        known = self._numbers.get(id(value))
        if known is not None:
            return {"same": known}
        number = self._numbers[id(value)] = len(self._numbers) + 1
        fields = {field: self.copy(item) for field, item in _fields(value)}
        return {"new": name, "id": number, "fields": fields}


def _fields(value: Any) -> Iterable[tuple[str, Any]]:
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return list(vars(value).items())


def put_back(desk: Desk, papers: dict[str, Any]) -> None:
    """Set the desk up with papers as JSON gives them.

    Raises:
        PapersError: they hold something that this release does not know.
    """
    reader = _Reader()
    names = _names(desk)
    for name, value in papers.items():
        if name not in names:
            raise PapersError(f"the desk has no {name} in this release; use the one that wrote it")
        setattr(desk, name, reader.read(value))


class _Reader:
    """Builds the graph again."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}

    def read(self, value: Any) -> Any:
        """Return what a JSON value stands for."""
        if not isinstance(value, dict):
            return value
        if "new" in value:
            return self._object(value)
        if "same" in value:
            return self._objects[value["same"]]
        if "enum" in value:
            return self._member(value["enum"], value["name"])
        ((kind, items),) = value.items()
        if kind == "dict":
            return {self.read(key): self.read(item) for key, item in items}
        if kind == "bytes":
            return bytes.fromhex(items)
        return _MAKERS[kind](self.read(item) for item in items)

    def _member(self, kind: str, name: str) -> Any:
        found = _class_of(kind)
        if name not in found.__members__:
            raise PapersError(
                f"{kind}.{name} is unknown to this release; use the one that wrote it"
            )
        return found[name]

    def _object(self, value: dict[str, Any]) -> Any:
        kind = _class_of(value["new"])
        made: Any = object.__new__(kind)
        if value["id"]:
            self._objects[value["id"]] = made
        for name, default in _defaults(kind):
            object.__setattr__(made, name, default)
        for name, item in value["fields"].items():
            try:
                object.__setattr__(made, name, self.read(item))
            except AttributeError as error:
                text = f"{kind.__name__} has no {name} in this release; use the one that wrote it"
                raise PapersError(text) from error
        return made


def _defaults(kind: type) -> list[tuple[str, Any]]:
    # A field that is newer than the papers begins as it does in a new object.
    if not dataclasses.is_dataclass(kind):
        return []
    found: list[tuple[str, Any]] = []
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            found.append((field.name, field.default))
        elif field.default_factory is not dataclasses.MISSING:
            found.append((field.name, field.default_factory()))
    return found
