"""Any field of the CRD by its path, and an object around a value for it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

from holdfast_operator.spec.problems import Path
from holdfast_operator.spec.schema import Schema
from jobs.job_files import TEMPLATE

ITEMS: Final[dict[str, Any]] = {
    "spec.failurePolicy.rules": {"action": "FailJob", "onLogPattern": "x"},
    "spec.failurePolicy.rules.0.onPodConditions": {"type": "DisruptionTarget"},
    "spec.extraRoles": {"name": "e", "template": TEMPLATE},
    "spec.podTemplateOverrides": {"manager": "m"},
    "spec.podTemplateOverrides.0.schedulingGates": {"name": "g"},
}
"""An item that is right, for every list whose items have required fields."""


def fields(schema: Schema, path: Path) -> Iterator[tuple[Path, Schema]]:
    """Every field from here on; 0 steps into a list, "key" into a mapping."""
    yield path, schema
    for name, child in schema.properties.items():
        yield from fields(child, (*path, name))
    if schema.items is not None:
        yield from fields(schema.items, (*path, 0))
    if schema.values is not None:
        yield from fields(schema.values, (*path, "key"))


def put(body: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """Set one field of an object, with what its place needs to be right; returns the object."""
    place: Any = body
    for at, step in enumerate(path[:-1]):
        following = path[at + 1]
        fresh: Any = [] if isinstance(following, int) else {}
        is_item = isinstance(step, int)
        place = _item(place, path[:at]) if is_item else place.setdefault(step, fresh)
    if isinstance(path[-1], int):
        place[:] = [value]
    else:
        place[path[-1]] = value
    return body


def _item(place: list[Any], path: Path) -> Any:
    if not place:
        place.append(copy.deepcopy(ITEMS.get(".".join(map(str, path)), {})))
    return place[0]
