"""Conditions as `metav1.Condition` has them: a true, false or unknown statement with its reason.

`lastTransitionTime` changes only when the statement does, so an unchanged job has an unchanged
status.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

_LONGEST_MESSAGE: Final = 32768
_LONGEST_REASON: Final = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    """One condition before it has a time."""

    type: str
    holds: bool
    reason: str
    """CamelCase."""
    message: str = ""
    """For people."""


def rfc3339(unix: float) -> str:
    """A time as Kubernetes writes it: UTC, whole seconds.

    Rounded up: what waits from this time on (`ttlSecondsAfterFinished`) never waits for less.
    """
    return datetime.fromtimestamp(math.ceil(unix), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def settle(
    statements: Iterable[Statement],
    before: Sequence[Mapping[str, Any]],
    generation: int,
    now: float,
) -> list[dict[str, Any]]:
    """The statements as conditions, in their order, with the times of those that did not change.

    Args:
        statements: What holds now.
        before: The conditions of the last status.
        generation: Of the spec that they are about.
        now: Unix time, s.
    """
    old = {condition["type"]: condition for condition in before}
    return [_condition(one, old.get(one.type), generation, now) for one in statements]


def _condition(
    statement: Statement, old: Mapping[str, Any] | None, generation: int, now: float
) -> dict[str, Any]:
    status = "True" if statement.holds else "False"
    same = old is not None and old["status"] == status
    return {
        "type": statement.type,
        "status": status,
        "observedGeneration": generation,
        "lastTransitionTime": old["lastTransitionTime"] if old and same else rfc3339(now),
        "reason": statement.reason[:_LONGEST_REASON],
        "message": statement.message[:_LONGEST_MESSAGE],
    }


def holding(conditions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Types of the conditions that are true."""
    yield from (one["type"] for one in conditions if one["status"] == "True")
