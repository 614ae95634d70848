"""Structural check: a whole object against the schema; every fault is reported.

Unknown and missing fields, types, choices, bounds, forms, repeated items. Each fault names the
value and a valid one. Does not belong here: relations between fields (`cel_rules`). Defaults must
be filled in before, because a key of a list's items may have one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import re2  # type: ignore[import-untyped]

from holdfast_operator.spec.problems import (
    Path,
    Problem,
    ProblemKind,
    nearest,
    show_path,
    show_value,
)
from holdfast_operator.spec.schema import FieldKind, Schema, walk

_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "": (-(2**63), 2**63 - 1),
}
_DATE_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)\Z")
_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,18}\Z")


def check_structure(value: Any, schema: Schema, path: Path = ()) -> Iterator[Problem]:
    """Yield every fault of a plain value and of its content, in order; it has its defaults."""
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
        elif isinstance(value, str):
            yield from _check_text(value, schema, path)
        elif is_int(value):
            yield from _check_number(value, schema, path)

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
        fault, meant = "is not a known field", (*path, near) if near else None
        return Problem((*path, name), ProblemKind.UNKNOWN, fault, remedy, meant=meant)

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
    return Problem(path, ProblemKind.REQUIRED, "must be set", remedy)


def _repeats(value: list[Any], schema: Schema, path: Path) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for at, item in enumerate(value):
        key = _key_of(item, schema)
        if key is None:
            continue
        if key in seen:
            names = " and ".join(schema.unique_by)
            same = f"has the same {names} as" if names else "is the same as"
            fault = f"{same} {show_path((*path, seen[key]))}"
            where, remedy = (*path, at), "remove or rename one"
            yield Problem(where, ProblemKind.REPEAT, fault, remedy, value=key)
        seen.setdefault(key, at)


def _key_of(item: Any, schema: Schema) -> str | None:
    """Return the text that must differ between the items of a list; None: items may be equal."""
    if schema.unique == "set":
        return json.dumps(item, sort_keys=True, default=str)
    if schema.unique == "map" and isinstance(item, dict):
        return ", ".join(json.dumps(item.get(name), default=str) for name in schema.unique_by)
    return None


def is_int(value: Any) -> bool:
    """Return True if a value is a whole number; a boolean is none."""
    return isinstance(value, int) and not isinstance(value, bool)


_FITS: Final[Mapping[FieldKind, Callable[[Any], bool]]] = {
    FieldKind.OBJECT: lambda value: isinstance(value, dict),
    FieldKind.ARRAY: lambda value: isinstance(value, list),
    FieldKind.STRING: lambda value: isinstance(value, str),
    FieldKind.INTEGER: is_int,
    FieldKind.BOOLEAN: lambda value: isinstance(value, bool),
    FieldKind.INT_OR_STRING: lambda value: is_int(value) or isinstance(value, str),
}
_NOUNS: Final[Mapping[FieldKind, str]] = {
    FieldKind.OBJECT: "a mapping of fields",
    FieldKind.ARRAY: "a list",
    FieldKind.STRING: "a text",
    FieldKind.INTEGER: "a whole number",
    FieldKind.BOOLEAN: "true or false",
    FieldKind.INT_OR_STRING: "a whole number or a text",
}
_FOUND: Final[Mapping[type, str]] = {
    type(None): "empty",
    bool: "a boolean",
    float: "a number with a fraction or an exponent",
    int: "a number",
    str: "a text",
    list: "a list",
    dict: "a mapping",
}


def wrong_type(value: Any, schema: Schema, path: Path) -> Problem | None:
    """Return the fault of a value with another type than the schema's; None: the type is right."""
    if _FITS[schema.kind](value):
        return None
    fault = f"is {_FOUND[type(value)]}, not {_NOUNS[schema.kind]}"
    shown = "" if value is None else show_value(value)
    return Problem(path, ProblemKind.TYPE, fault, _remedy(value, schema), value=shown)


def _remedy(value: Any, schema: Schema) -> str:
    if isinstance(value, bool) and schema.choices:
        return (
            "YAML reads an unquoted yes, no, on, off, true or false as a boolean; use one of "
            + ", ".join(schema.choices)
        )
    if schema.kind is FieldKind.STRING and isinstance(value, bool | int | float):
        return "write it in quotes"
    if schema.kind is FieldKind.INTEGER and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if schema.kind is FieldKind.INTEGER and isinstance(value, str) and _NUMBER.match(value):
        return f"write {int(value)} without quotes"
    return f"use {_wanted(schema)}"


def _wanted(schema: Schema) -> str:
    if schema.choices:
        return "one of " + ", ".join(schema.choices)
    if schema.kind is FieldKind.INTEGER:
        low, high = _range(schema)
        return f"a whole number from {low} to {high}"
    return _NOUNS[schema.kind]


def _range(schema: Schema) -> tuple[int, int]:
    low, high = _RANGES[schema.form]
    return (
        low if schema.least is None else max(low, schema.least),
        high if schema.most is None else min(high, schema.most),
    )


def _check_number(value: int, schema: Schema, path: Path) -> Iterator[Problem]:
    low, high = _range(schema)
    if not low <= value <= high:
        fault = f"is below the minimum {low}" if value < low else f"is above the maximum {high}"
        yield bound(path, value, fault, f"use a whole number from {low} to {high}")


def _check_text(value: str, schema: Schema, path: Path) -> Iterator[Problem]:
    if schema.choices and value not in schema.choices:
        yield _no_choice(value, schema, path)
    if schema.least is not None and len(value) < schema.least:
        yield bound(path, value, "is too short", f"use at least {schema.least} characters")
    if schema.most is not None and len(value) > schema.most:
        yield bound(
            path, value, f"has {len(value)} characters", f"use at most {schema.most} characters"
        )
    if schema.pattern and not found(schema.pattern, value):
        yield bound(path, value, "has the wrong form", f"it must match {schema.pattern}")
    if schema.form == "date-time" and not _DATE_TIME.match(value):
        yield bound(path, value, "is not a date and time", "use the form 2026-01-31T23:59:59Z")


def _no_choice(value: str, schema: Schema, path: Path) -> Problem:
    near = nearest(value, schema.choices)
    hint = f" (did you mean {near}?)" if near else ""
    fault, remedy = "is not one of the choices", f"use {_wanted(schema)}{hint}"
    return Problem(path, ProblemKind.CHOICE, fault, remedy, value=show_value(value))


def bound(path: Path, value: Any, fault: str, remedy: str) -> Problem:
    """Return the problem of a value that is too small, too large or of the wrong form."""
    return Problem(path, ProblemKind.BOUND, fault, remedy, value=show_value(value))


def found(pattern: str, text: str) -> bool:
    """Return True if the text contains a match of the pattern.

    Raises:
        ValueError: The pattern is not RE2.
    """
    try:
        return re2.search(pattern, text) is not None
    except re2.error as error:
        raise ValueError(f"{pattern!r} is not an RE2 pattern: {error}") from error


def fault_of(pattern: str) -> str | None:
    """Return the fault of a pattern that a person wrote; None if it is RE2."""
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0] if error.args else error
        return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return None
