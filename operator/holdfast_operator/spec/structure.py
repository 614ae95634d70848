"""Structural check: a whole object against the schema; every fault is reported.

Unknown and missing fields, sizes, repeated items. Does not belong here: single values (`scalars`),
relations between fields (`cel_rules`). Defaults must be filled in before, because a key of a list's
items may have one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from holdfast_operator.spec.problems import Path, Problem, ProblemKind, nearest, show_path
from holdfast_operator.spec.scalars import bound, check_scalar, wrong_type
from holdfast_operator.spec.schema import FieldKind, Schema, walk


def check_structure(value: Any, schema: Schema, path: Path = ()) -> Iterator[Problem]:
    """Yield every fault of `value` and of its content, in the order of the object.

    Args:
        value: Plain mappings, lists, texts, numbers and booleans, with defaults filled in.
        schema: Schema of `value`.
        path: Path of `value`.
    """
    yield from _Walk(schema, path).check(value, schema, path)


class _Walk:
    """One walk; it has the whole schema, to name the place where a misplaced field belongs."""

    def __init__(self, root: Schema, path: Path) -> None:
        self._root = root
        self._at = path

    def check(self, value: Any, schema: Schema, path: Path) -> Iterator[Problem]:
        """Yield every fault of one value and of its content."""
        fault = wrong_type(value, schema, path)
        if fault is not None:
            yield fault
        elif schema.kind is FieldKind.OBJECT:
            yield from self._object(value, schema, path)
        elif schema.kind is FieldKind.ARRAY:
            yield from self._array(value, schema, path)
        else:
            yield from check_scalar(value, schema, path)

    def _object(self, value: dict[str, Any], schema: Schema, path: Path) -> Iterator[Problem]:
        if schema.most is not None and len(value) > schema.most:
            yield bound(path, value, "has too many keys", f"use at most {schema.most}")
        for name in schema.required:
            if name not in value:
                yield _missing((*path, name), schema.properties.get(name))
        for name, child in value.items():
            known = schema.properties.get(name, schema.values)
            if known is not None:
                yield from self.check(child, known, (*path, name))
            elif not schema.preserve:
                yield self._unknown(name, schema, path)

    def _unknown(self, name: str, schema: Schema, path: Path) -> Problem:
        near = nearest(name, schema.properties)
        if near is not None:
            remedy = f"did you mean {near}?"
        else:
            home = self._home_of(name)
            known = ", ".join(sorted(schema.properties)) or "none"
            remedy = f"it belongs in {home}" if home else f"known fields here: {known}"
        return Problem(
            path=(*path, name),
            kind=ProblemKind.UNKNOWN,
            fault="is not a known field",
            remedy=remedy,
            meant=(*path, near) if near else None,
        )

    def _home_of(self, name: str) -> str | None:
        for path, _ in walk(self._root, self._at):
            if len(path) > len(self._at) and path[-1] == name:
                return show_path(path[:-1])
        return None

    def _array(self, value: list[Any], schema: Schema, path: Path) -> Iterator[Problem]:
        if schema.least is not None and len(value) < schema.least:
            yield bound(path, value, "is too short", f"give at least {schema.least} item")
        if schema.most is not None and len(value) > schema.most:
            yield bound(path, value, "is too long", f"give at most {schema.most} items")
        if schema.items is not None:
            for at, item in enumerate(value):
                yield from self.check(item, schema.items, (*path, at))
        yield from _repeats(value, schema, path)


def _missing(path: Path, schema: Schema | None) -> Problem:
    said = schema.description if schema is not None else ""
    remedy = f"set it: {said}" if said else "set it"
    return Problem(path=path, kind=ProblemKind.REQUIRED, fault="must be set", remedy=remedy)


def _repeats(value: list[Any], schema: Schema, path: Path) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for at, item in enumerate(value):
        key = _key_of(item, schema)
        if key is None:
            continue
        if key in seen:
            names = " and ".join(schema.unique_by)
            same = f"has the same {names} as" if names else "is the same as"
            yield Problem(
                path=(*path, at),
                kind=ProblemKind.REPEAT,
                value=key,
                fault=f"{same} {show_path((*path, seen[key]))}",
                remedy="remove or rename one",
            )
        seen.setdefault(key, at)


def _key_of(item: Any, schema: Schema) -> str | None:
    """Return the text that must differ between the items of a list; None: items may be equal."""
    if schema.unique == "set":
        return json.dumps(item, sort_keys=True, default=str)
    if schema.unique == "map" and isinstance(item, dict):
        return ", ".join(json.dumps(item.get(name), default=str) for name in schema.unique_by)
    return None
