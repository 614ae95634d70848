"""One measurement, and how a line of the record becomes one. Pure: no files, no clock."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bench import record
from bench.recovery.measure import Recovery

OURS = "holdfast"
"""The system that the others are compared with."""

RECOVERED = "recovered"
NEVER = "never"
UNNOTICED = "unnoticed"
"""The job trained on as if nothing had happened."""
NOT_STARTED = "not started"
"""The job did not reach the state in which the fault is done, so nothing was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of a plan, and so one trial: the fault, the system and the rank that is hit."""

    scenario: str
    """crash, node-lost, agent-frozen or node-frozen; what is reported may be more (rejoin)."""
    system: str
    variant: str
    restore: str
    target: int
    """The rank that is hit first, or whose node is."""
    repetition: int = 0
    limit_s: float = 90.0
    """A recovery that takes longer counts as never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measurement."""

    case: Case
    measured: str
    """The scenario, or "rejoin" for the second half of node-lost."""
    target: int
    outcome: str
    reason: str = ""
    recovery: Recovery | None = None
    notes: dict[str, float] = field(default_factory=dict)
    """Further times of this scenario, seconds."""
    load: float = 0.0
    """The machine's load average over a minute, before the fault."""


def from_line(line: str) -> Result:
    """Read a result from a line that `record.to_line` wrote."""
    raw: dict[str, Any] = json.loads(line)
    recovered = raw.pop("recovery")
    return Result(
        **{**raw, "case": Case(**raw["case"])},
        recovery=None if recovered is None else Recovery(**recovered),
    )


def read(lines: Iterable[str]) -> tuple[dict[str, Any], list[Result]]:
    """Read a results file: return what is known of the run, and the results."""
    return record.read(lines, from_line)
