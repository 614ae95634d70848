"""Defaults from the schema, filled in as the API server does it.

Empty (null) fields of the schema count as absent. The given object is never changed. Nothing is
checked here: a value of the wrong type is left as it is for `structure`.
"""

from __future__ import annotations

import copy
from typing import Any

from holdfast_operator.spec.schema import FieldKind, Schema


def with_defaults(value: Any, schema: Schema) -> Any:
    """Return a copy of `value` with every default of `schema`, without its null fields."""
    if schema.kind is FieldKind.OBJECT and isinstance(value, dict):
        return _object(value, schema)
    if schema.kind is FieldKind.ARRAY and isinstance(value, list) and schema.items is not None:
        return [with_defaults(item, schema.items) for item in value]
    return copy.deepcopy(value)


def _object(value: dict[str, Any], schema: Schema) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, given in value.items():
        known = schema.properties.get(name)
        if known is None:
            result[name] = copy.deepcopy(given)
        elif given is not None:
            result[name] = with_defaults(given, known)
    for name, known in schema.properties.items():
        if name not in result and known.has_default:
            result[name] = with_defaults(known.default, known)
    return result
