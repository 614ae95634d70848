"""How often something may happen before the job is given up.

Belongs here: counting charges in their windows. Does not belong here: which budget an incident is
charged to (`failure`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from holdfast_wire.messages import Budget, BudgetCharge, BudgetKind
from holdfast_wire.reasons import EndReason

CHARGEABLE = (
    BudgetKind.FAILURES,
    BudgetKind.PREEMPTIONS,
    BudgetKind.RESCALES,
    BudgetKind.NO_PROGRESS,
)
"""Every kind that can be charged, in the order in which they are shown."""

END_REASONS = {
    BudgetKind.FAILURES: EndReason.FAILURE_BUDGET_EXHAUSTED,
    BudgetKind.PREEMPTIONS: EndReason.PREEMPTION_BUDGET_EXHAUSTED,
    BudgetKind.RESCALES: EndReason.RESCALE_BUDGET_EXHAUSTED,
    BudgetKind.NO_PROGRESS: EndReason.NO_PROGRESS,
}
"""Why the job ends when a budget of this kind has nothing left."""

NAMES = {
    BudgetKind.FAILURES: "failures",
    BudgetKind.PREEMPTIONS: "preemptions",
    BudgetKind.RESCALES: "rescales",
    BudgetKind.NO_PROGRESS: "noProgressRestarts",
}
"""Field names under `failurePolicy.budgets`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Balance:
    """One budget and what is spent of it."""

    kind: BudgetKind
    used: int
    limit: int | None
    """None: the spec has no such budget, nothing limits it."""
    window: int
    """s of the job's own time; 0: its whole life."""


@dataclasses.dataclass(frozen=True, slots=True)
class Affordable:
    """Whether one more charge is allowed."""

    ok: bool
    reason: str


def balance(
    kind: BudgetKind,
    budgets: Sequence[Budget],
    charges: Iterable[BudgetCharge],
    job_seconds: float,
    failure_cap: int | None = None,
) -> Balance:
    """What is spent of a budget at `job_seconds` of the job's own time.

    `failure_cap` (the agents' --max-restarts) lowers the limit of failures and nothing else.
    """
    found = next((budget for budget in budgets if budget.kind is kind), None)
    limit = None if found is None else found.limit
    window = 0 if found is None else found.window_seconds
    if kind is BudgetKind.FAILURES and failure_cap is not None:
        limit = failure_cap if limit is None else min(limit, failure_cap)
    since = job_seconds - window if window > 0 else float("-inf")
    used = sum(1 for charge in charges if charge.kind is kind and charge.job_seconds > since)
    return Balance(kind, used, limit, window)


def afford(account: Balance) -> Affordable:
    """Whether the budget can take one more charge."""
    name = NAMES[account.kind]
    if account.limit is None:
        return Affordable(ok=True, reason=f"{name} has no limit")
    span = f" within {account.window} s" if account.window else ""
    if account.used + 1 > account.limit:
        text = f"{name} allows {account.limit}{span}; this would be number {account.used + 1}"
        return Affordable(ok=False, reason=text)
    text = f"number {account.used + 1} of {account.limit} {name}{span}"
    return Affordable(ok=True, reason=text)
