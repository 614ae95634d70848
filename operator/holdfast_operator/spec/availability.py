"""Fields of features that this version does not have yet: asking for one is refused by name.

One table. A feature that arrives removes its rows, and may change the CRD's defaults. The schema
keeps the fields, so that files need no change then. No default asks for a missing feature: the API
server fills defaults in, and then a request and a default look the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast_operator.spec.problems import Path, Problem, ProblemKind, show_value
from holdfast_operator.spec.schema import Schema


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MissingFeature:
    """A field, or group of fields, whose feature is missing."""

    path: str
    """Path under `spec`, with dots; a group stands for every field in it."""
    feature: str
    """The missing feature, for people."""
    allowed: tuple[Any, ...] = ()
    """Values that may be written; empty: only the default may."""
    without: str = ""
    """Substring: texts without it may be written; empty: no such exception."""
    remedy: str

    @property
    def steps(self) -> Path:
        """Full path of the field."""
        return ("spec", *self.path.split("."))

    def allows(self, value: Any, default: Any) -> bool:
        """Return True if a value asks for nothing that is missing; `default`: the schema's."""
        if self.without:
            return self.without not in str(value)
        return value in (self.allowed or (default,))


NOT_BUILT: Final[tuple[MissingFeature, ...]] = (
    MissingFeature(
        path="elasticPolicy.scaler",
        feature="a master that scales the job by itself",
        allowed=("External",),
        remedy="write External or leave it out, and scale with `holdfast scale`",
    ),
    MissingFeature(
        path="checkpoint.path",
        feature="checkpoints in an object store",
        without="://",
        remedy="give a directory on a file system that all workers mount",
    ),
    MissingFeature(
        path="checkpoint.memory.copies",
        feature="copies of checkpoints on other nodes",
        allowed=(0,),
        remedy="write 0 or leave it out, and give checkpoint.path",
    ),
    MissingFeature(
        path="checkpoint.onSuspend",
        feature="suspending without a checkpoint",
        allowed=(True,),
        remedy="write true or leave it out",
    ),
    MissingFeature(
        path="podTemplateOverrides",
        feature="changes of templates by other controllers",
        remedy="leave it out, and change the templates themselves",
    ),
)


def check_availability(given: Mapping[str, Any], schema: Schema) -> Iterator[Problem]:
    """Yield a problem for every field that asks for a missing feature."""
    told: set[Path] = set()
    for row in NOT_BUILT:
        for path, value, default in _fields(given, schema, row.steps, ()):
            if path not in told and not row.allows(value, default):
                told.add(path)
                fault = f"asks for {row.feature}, which this version does not have"
                kind, shown = ProblemKind.UNAVAILABLE, show_value(value)
                yield Problem(path, kind, fault, row.remedy, value=shown)
            told.add(path)


def _fields(
    value: Any, schema: Schema | None, steps: Path, path: Path
) -> Iterator[tuple[Path, Any, Any]]:
    """Yield every field that is written at or under `steps`, with its value and its default."""
    if steps:
        if isinstance(value, dict) and schema is not None:
            child = schema.properties.get(str(steps[0]))
            yield from _fields(value.get(steps[0]), child, steps[1:], (*path, steps[0]))
    elif isinstance(value, dict) and schema is not None:
        for name, child in schema.properties.items():
            yield from _fields(value.get(name), child, (), (*path, name))
    elif value is not None and schema is not None:
        yield path, value, schema.default


def describe(path: str) -> str | None:
    """Describe the missing feature of a field under `spec`, for the reference page; None: none."""
    for row in NOT_BUILT:
        if path == row.path or path.startswith(f"{row.path}."):
            return row.feature
    return None
