"""Fields of features that this version does not have yet: refused by name when asked for.

One table. A feature that arrives removes its rows, and nothing else changes. The schema keeps the
fields, so that files need no change then. What a row's default would ask for is turned off for
everybody who does not write the field.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast_operator.spec.problems import Path, Problem, ProblemKind, show_value, value_at
from holdfast_operator.spec.schema import Schema


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One field, or group of fields, whose feature is not there."""

    path: str
    """Under `spec`, with dots; a group stands for every field in it."""
    feature: str
    """What is missing, for people."""
    allowed: tuple[Any, ...] = ()
    """Values that may be written; empty: only the default may."""
    effective: Any = None
    """What holds instead of a value that is not allowed, such as the schema's default; None: that
    default does nothing."""
    remedy: str

    @property
    def steps(self) -> Path:
        """The full path."""
        return ("spec", *self.path.split("."))


NOT_BUILT: Final[tuple[Row, ...]] = (
    Row(
        path="elasticPolicy.scaler",
        feature="a master that scales the job by itself",
        allowed=("External",),
        remedy="write External or leave it out, and scale with `holdfast scale`",
    ),
    Row(
        path="health.preflight.mode",
        feature="checks before a node joins",
        allowed=("Disabled",),
        effective="Disabled",
        remedy="write Disabled or leave it out",
    ),
    Row(
        path="health.preflight",
        feature="checks before a node joins",
        remedy="leave it out",
    ),
    Row(
        path="health.hang.mode",
        feature="acting on hangs",
        allowed=("Disabled", "Report"),
        effective="Report",
        remedy="write Report (stalls are shown) or leave it out",
    ),
    Row(
        path="health.hang",
        feature="thresholds of hangs",
        remedy="leave it out: stalls are only shown",
    ),
    Row(
        path="health.straggler.mode",
        feature="acting on slow nodes",
        allowed=("Disabled", "Report"),
        remedy="write Report (step times are shown) or leave it out",
    ),
    Row(
        path="health.straggler",
        feature="verdicts about slow nodes",
        remedy="leave it out: step times are only shown",
    ),
    Row(
        path="checkpoint",
        feature="flash checkpoints",
        remedy="leave it out, and say it to the Checkpointer in the training script",
    ),
    Row(
        path="scheduling.gang.backend",
        feature="gang scheduling",
        allowed=("Auto", "None"),
        remedy="write None or leave it out",
    ),
    Row(
        path="scheduling.queue",
        feature="gang scheduling",
        remedy="leave it out",
    ),
    Row(
        path="scheduling.topology",
        feature="keeping workers together",
        remedy="leave it out, and write affinity or topologySpreadConstraints in worker.template",
    ),
    Row(
        path="podTemplateOverrides",
        feature="changes of templates by other controllers",
        remedy="leave it out, and change the templates themselves",
    ),
)

BUILT: Final = frozenset(
    {
        "checkpoint.path",
        "checkpoint.memory.interval",
        "checkpoint.storage.interval",
        "checkpoint.storage.keepEverySteps",
        "checkpoint.storage.keepLast",
        "checkpoint.onDelete",
        "checkpoint.onDeleteTimeoutSeconds",
    }
)
"""Fields that may be written although the group that they stand in is not there. The intervals
and what is kept hold for scripts that use `holdfast.Checkpointer` and say nothing else themselves.
Until the rest is there, the path is the training script's own affair; a last checkpoint is the one
that the script saves when it is told to save and stop."""


def check_availability(
    given: Mapping[str, Any], schema: Schema, *, defaulted: bool = False
) -> Iterator[Problem]:
    """A problem for every field that is written and asks for what is not there.

    Args:
        given: The object as written, without defaults.
        schema: The CRD's, for the defaults.
        defaulted: The object has its defaults, as from the API server: a value that is one may be
            nobody's wish, and is no fault even where it would be off.
    """
    told: set[Path] = set()
    for row in NOT_BUILT:
        for path, value, default in _fields(given, schema, row.steps, ()):
            harmless = (*row.allowed, default) if defaulted else row.allowed or (default,)
            allowed = value in harmless or _dotted(path) in BUILT
            if path not in told and not allowed:
                told.add(path)
                yield Problem(
                    path=path,
                    kind=ProblemKind.UNAVAILABLE,
                    value=show_value(value),
                    fault=f"asks for {row.feature}, which this version does not have",
                    remedy=row.remedy,
                )
            told.add(path)


def with_available(defaulted: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an object with its defaults in which nothing asks for what is not there."""
    result = copy.deepcopy(dict(defaulted))
    for row in NOT_BUILT:
        group = value_at(result, row.steps[:-1])
        if row.effective is not None and group.get(row.steps[-1]) not in row.allowed:
            group[row.steps[-1]] = row.effective
    return result


def _fields(
    value: Any, schema: Schema | None, steps: Path, path: Path
) -> Iterator[tuple[Path, Any, Any]]:
    """Every single field that is written at or under `steps`, with its value and its default."""
    if steps:
        if isinstance(value, dict) and schema is not None:
            child = schema.properties.get(str(steps[0]))
            yield from _fields(value.get(steps[0]), child, steps[1:], (*path, steps[0]))
    elif isinstance(value, dict) and schema is not None:
        for name, child in schema.properties.items():
            yield from _fields(value.get(name), child, (), (*path, name))
    elif value is not None and schema is not None:
        yield path, value, schema.default


def _dotted(path: Path) -> str:
    return ".".join(str(step) for step in path[1:])


def describe(path: str) -> str | None:
    """What is not there of a field under `spec`, for the reference page; None where all is."""
    if path in BUILT:
        return None
    for row in NOT_BUILT:
        if path == row.path or path.startswith(f"{row.path}."):
            return row.feature
    return None
