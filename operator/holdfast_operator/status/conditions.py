"""Conditions as in `metav1.Condition`: a true, false or unknown statement with its reason.

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
_STATUS: Final = {True: "True", False: "False", None: "Unknown"}


@dataclasses.dataclass(frozen=True, slots=True)
class ConditionStatement:
    """One condition before it has a time."""

    type: str
    holds: bool | None
    """None: nobody knows."""
    reason: str
    """CamelCase."""
    message: str = ""
    """For people."""


def rfc3339(unix: float) -> str:
    """Return a time as Kubernetes writes it: UTC, whole seconds.

    It is rounded up: a wait from this time on (`ttlSecondsAfterFinished`) is never too short.
    """
    return datetime.fromtimestamp(math.ceil(unix), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def settle(
    statements: Iterable[ConditionStatement],
    before: Sequence[Mapping[str, Any]],
    generation: int,
    now: float,
) -> list[dict[str, Any]]:
    """Return the statements as conditions, in order; unchanged ones keep their times.

    Args:
        statements: Present statements.
        before: The conditions of the last status.
        generation: Generation of their spec.
        now: Unix time, s.
    """
    old = {condition["type"]: condition for condition in before}
    return [_condition(one, old.get(one.type), generation, now) for one in statements]


def _condition(
    statement: ConditionStatement, old: Mapping[str, Any] | None, generation: int, now: float
) -> dict[str, Any]:
    status = _STATUS[statement.holds]
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
    """Yield the types of the conditions that are true."""
    yield from (one["type"] for one in conditions if one["status"] == "True")
