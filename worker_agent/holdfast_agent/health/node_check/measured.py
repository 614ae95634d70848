"""One figure of a node check, and how a child process reports it.

Belongs here: values, and the lines between child and runner. Does not belong here: a measurement.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast_wire.resources import Resource


class NotMeasurableError(Exception):
    """A resource cannot be measured here, which says nothing about the node; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFigures:
    """The figure of a resource, or the reason why there is none."""

    resource: Resource
    value: float | None = None
    """In the resource's unit; None: there is none."""
    subject: str = ""
    """Device, folder or partner that was measured."""
    error: str = ""
    """The measurement failed or hung: that is a result."""
    skipped: str = ""
    """It was not made, for a reason that is not the node's fault."""

    def to_plain(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> MeasuredFigures:
        """Return what `to_plain` made; raises ValueError or KeyError for anything else."""
        value = plain.get("value")
        return cls(
            resource=Resource(plain["resource"]),
            value=None if value is None else float(value),
            subject=str(plain.get("subject", "")),
            error=str(plain.get("error", "")),
            skipped=str(plain.get("skipped", "")),
        )


class FigureReporter:
    """Writes figures to the runner, one line of JSON each, as soon as they are there."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._current: tuple[Resource, str] | None = None

    def say(self, **line: Any) -> None:
        """Write one line."""
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def begins(self, resource: Resource, subject: str = "") -> None:
        """Tell what is measured from now on: a hang is blamed on it."""
        self._current = (resource, subject)
        self.say(now=resource.value, subject=subject)

    def figure(self, value: float) -> None:
        """Report the figure of what is being measured."""
        resource, subject = self._current_one()
        self._tell(MeasuredFigures(resource=resource, subject=subject, value=value))

    @contextlib.contextmanager
    def measures(self, resource: Resource, subject: str = "") -> Iterator[None]:
        """Report an error of the block as this resource's result, and go on behind the block."""
        self.begins(resource, subject)
        try:
            yield
        except NotMeasurableError as error:
            self._tell(MeasuredFigures(resource=resource, subject=subject, skipped=str(error)))
        except (OSError, RuntimeError, ValueError, MemoryError) as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            self._tell(MeasuredFigures(resource=resource, subject=subject, error=text))

    def _current_one(self) -> tuple[Resource, str]:
        if self._current is None:
            raise RuntimeError("a figure was reported before `begins` named its resource")
        return self._current

    def _tell(self, measured: MeasuredFigures) -> None:
        self.say(figure=measured.to_plain())
