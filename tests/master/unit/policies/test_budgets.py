"""Charges that a job may have before it is given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.failure import (
    BUDGET_NAMES,
    CHARGEABLE,
    END_REASONS,
    afford,
    balance,
    has_own_account,
)
from holdfast_wire.messages import Budget, BudgetCharge, BudgetKind
from holdfast_wire.reasons import EndReason

FAILURES = BudgetKind.FAILURES


def paid(*times: float, kind: BudgetKind = FAILURES) -> list[BudgetCharge]:
    """Charges at these times of the job."""
    return [BudgetCharge(kind=kind, job_seconds=at, incident_id=f"i{at}") for at in times]


TABLE = [
    # limit, window, charges at, now, cap, used, another one is allowed
    (2, 0, (), 100.0, None, 0, True),
    (2, 0, (1, 2), 100.0, None, 2, False),
    (2, 50, (1, 60), 100.0, None, 1, True),
    (2, 50, (50, 60), 100.0, None, 1, True),
    (2, 50, (51, 60), 100.0, None, 2, False),
    (0, 0, (), 100.0, None, 0, False),
    (5, 0, (1,), 100.0, 1, 1, False),
    (5, 0, (1,), 100.0, 9, 1, True),
]


@pytest.mark.parametrize(("limit", "window", "times", "now", "cap", "used", "ok"), TABLE)
def test_balance(
    *,
    limit: int,
    window: int,
    times: tuple[float, ...],
    now: float,
    cap: int | None,
    used: int,
    ok: bool,
) -> None:
    """Charges inside the window count; one more than the limit is too many."""
    budget = Budget(kind=FAILURES, limit=limit, window_seconds=window)
    account = balance(FAILURES, [budget], paid(*times), now, cap)
    assert account.used == used
    verdict = afford(account)
    assert verdict.ok is ok
    assert "failures" in verdict.reason


def test_a_budget_that_the_spec_does_not_have_limits_nothing() -> None:
    """Unless agents were given --max-restarts."""
    charges = paid(*range(100))
    assert afford(balance(FAILURES, [], charges, 0.0)).ok
    assert not afford(balance(FAILURES, [], charges, 200.0, 3)).ok


def test_the_cap_lowers_only_failures() -> None:
    """--max-restarts says nothing about preemptions."""
    budget = Budget(kind=BudgetKind.PREEMPTIONS, limit=7)
    assert balance(BudgetKind.PREEMPTIONS, [budget], [], 0.0, 0).limit == 7


@pytest.mark.parametrize(
    ("limit", "cap", "apart"),
    [(None, None, False), (None, 3, False), (5, None, True), (5, 6, True), (5, 5, False)],
)
def test_when_restarts_without_progress_are_counted_apart(
    limit: int | None,
    cap: int | None,
    apart: bool,  # noqa: FBT001
) -> None:
    """With a budget of their own that --max-restarts does not undercut."""
    kind = BudgetKind.NO_PROGRESS
    budgets = [Budget(kind=FAILURES, limit=9)]
    budgets += [] if limit is None else [Budget(kind=kind, limit=limit)]
    assert has_own_account(budgets, cap) is apart


def test_every_kind_has_a_name_and_an_end() -> None:
    """No exhausted budget is without its reason."""
    assert set(CHARGEABLE) == END_REASONS.keys() == BUDGET_NAMES.keys()
    assert set(END_REASONS.values()) <= {
        value for name, value in vars(EndReason).items() if name.isupper()
    }


CHARGES = st.lists(st.tuples(st.sampled_from(CHARGEABLE), st.floats(0, 1000)), max_size=30)


@given(CHARGES, st.integers(0, 500), st.floats(0, 1000), st.floats(0, 100))
def test_kinds_are_counted_apart_and_windows_only_forget(
    charges: list[tuple[BudgetKind, float]], window: int, now: float, later: float
) -> None:
    """Never negative, never more than was charged, never more as time goes by."""
    made = [BudgetCharge(kind=kind, job_seconds=at) for kind, at in charges]
    for kind in CHARGEABLE:
        budgets = [Budget(kind=kind, limit=3, window_seconds=window)]
        used = balance(kind, budgets, made, now).used
        assert 0 <= used <= sum(1 for charge in made if charge.kind is kind)
        assert balance(kind, budgets, made, now + later).used <= used
