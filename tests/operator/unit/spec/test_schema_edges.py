"""A real API server is shown the edges of every bound of the CRD (tests/operator/process)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import yaml

from jobs.job_files import CRD
from jobs.schema_edges import every_edge

_BOUNDS: Final = {
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"),
    *("maxProperties", "pattern", "enum"),
}


def _bounds(node: Any) -> Iterator[str]:
    """Every bound in the CRD's own text."""
    if isinstance(node, list):
        for one in node:
            yield from _bounds(one)
    elif isinstance(node, dict):
        yield from (key for key, value in node.items() if key in _BOUNDS and _is_bound(value))
        for value in node.values():
            yield from _bounds(value)


def _is_bound(value: Any) -> bool:
    """Return whether the value is a bound and not a field of that name."""
    return not isinstance(value, dict)


def test_every_bound_of_the_crd_is_tried_on_both_sides() -> None:
    """Counted in its text: a bound that the generator does not know would be missed in silence."""
    edges = every_edge()
    version = yaml.safe_load(CRD)["spec"]["versions"][0]
    written = Counter(_bounds(version["schema"]["openAPIV3Schema"]))
    assert sum(written.values()) >= 170
    for refused in (False, True):
        covered = {(edge.path, edge.bound) for edge in edges if bool(edge.refused) is refused}
        assert Counter(bound for _, bound in covered) == written
