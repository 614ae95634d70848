"""One measurement. Pure: no files, no clock."""

from dataclasses import dataclass, field
from typing import Any

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


def result(*, case: dict[str, Any], recovery: dict[str, Any] | None, **fields: Any) -> Result:
    """Make a result of the fields of its line."""
    found = None if recovery is None else Recovery(**recovery)
    return Result(case=Case(**case), recovery=found, **fields)
