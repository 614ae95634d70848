"""Fields of the spec with a new name; the old one is taken for a release, with a warning. Pure.

The typed spec reads both names, and the CRD refuses unlike values. An entry goes once its release
has passed. Features that are missing altogether are in `availability`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast_operator.spec.problems import Path, show_value, value_at

FIELD_DEPRECATED: Final = "FieldDeprecated"
"""Reason of the event that a job uses the old name of a field."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RenamedField:
    """One field with a new name."""

    old: str
    """Path under `spec`, with dots."""
    new: str
    """Path under `spec`, with dots; values mean the same."""

    def warn(self, spec: Mapping[str, Any]) -> str | None:
        """Return the warning to a spec that uses the old name; None: it does not."""
        value = value_at(spec, self._steps(self.old))
        if value is None:
            return None
        group, shown = self.old.partition(".")[0], show_value(value)
        kept = value_at(spec, self._steps(self.new)) is not None
        remedy = f"delete spec.{group}" if kept else f"write it there, and delete spec.{group}"
        return (
            f"spec.{self.old}: {shown} is deprecated and taken as spec.{self.new}; {remedy}: the "
            "next minor release may refuse it"
        )

    @staticmethod
    def _steps(path: str) -> Path:
        return tuple(path.split("."))


RENAMED: Final[tuple[RenamedField, ...]] = (
    RenamedField(old="localSGD.replicaNodes", new="replicaPolicy.nodesPerReplica"),
)


def deprecations(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each old name that a checked ElasticJob object uses, with the remedy."""
    for one in RENAMED:
        text = one.warn(body["spec"])
        if text is not None:
            yield text
