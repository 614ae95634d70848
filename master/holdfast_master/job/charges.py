"""What an incident costs its budgets, and when that ends the job.

Belongs here: judging open incidents, closing and charging them, once. Does not belong here: which
budget it is (`decide.failure`), what is left of one (`decide.budgets`), evidence (`incidents`).
"""

from __future__ import annotations

from holdfast_master.decide import budgets, failure
from holdfast_master.job import goodput_marks
from holdfast_master.job.case import Case
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.timers import Timer
from holdfast_wire.messages import BudgetCharge, BudgetKind, FailureAction
from holdfast_wire.reasons import EndReason, EventReason


def judge(desk: Desk, case: Case) -> None:
    """What the rules and budgets say of the incident as it looks now."""
    case.response = failure.respond(case.best, desk.spec.failure_rules)
    charge = charge_of(desk, case)
    reason, text = "", ""
    if case.response.action is FailureAction.FAIL_JOB:
        reason, text = EndReason.FAIL_JOB_RULE, f"{case.response.reason}: {case.best.text}"
    elif case.given_up and case.kind not in failure.TAKEN:
        # As under torch's own rendezvous, which such a torchrun closes for all. But a node that was
        # taken away is nobody's failure, and its job goes on with those that are left or come back.
        reason = EndReason.FAILURE_BUDGET_EXHAUSTED
        text = f"{case.given_up} (--max-restarts); the last was: {case.best.text}"
    elif charge.kind is not None:
        can = budgets.afford(balance(desk, charge.kind))
        if not can.ok:
            reason = budgets.END_REASONS[charge.kind]
            text = f"{can.reason}; the last was: {case.best.text}"
    if reason and not case.terminal:
        desk.timers.ensure(Timer.TERMINAL, desk.now + desk.settings.terminal_seconds, case.id)
    if not reason:
        desk.timers.cancel(Timer.TERMINAL, case.id)
    case.terminal, case.end_reason = text, reason
    desk.dirty = True


def judge_again(desk: Desk) -> None:
    """Rules or limits have changed: what do they say of the open incidents."""
    for case in desk.open_cases():
        judge(desk, case)


def charge_of(desk: Desk, case: Case) -> failure.Charge:
    """Which budget the incident spends as it looks now.

    Where the spec has no budget for restarts without progress, they are failures like others.
    """
    apart = any(budget.kind is BudgetKind.NO_PROGRESS for budget in desk.spec.budgets)
    return failure.charge(
        case.best,
        case.response.action,
        progressed=case.progressed or not apart,
        asked=case.asked,
    )


def balance(desk: Desk, kind: BudgetKind) -> budgets.Balance:
    """What is spent of a budget now."""
    return budgets.balance(
        kind,
        desk.spec.budgets,
        desk.state.charges,
        desk.clock.job_seconds,
        failure_cap=desk.roster.failure_cap,
    )


def end_terminal(desk: Desk, incident: str) -> None:
    """No better evidence came in time: the incident ends the job."""
    for case in desk.open_cases():
        if case.id == incident and case.terminal:
            close(desk, case)


def end_evidence(desk: Desk, incident: str) -> None:
    """Evidence has had its time."""
    for case in desk.open_cases():
        if case.id == incident:
            close(desk, case)


def failure_limit(desk: Desk) -> int:
    """Failures that the job may have, for TORCHELASTIC_MAX_RESTARTS."""
    limit = balance(desk, BudgetKind.FAILURES).limit
    return 0 if limit is None else limit


def close(desk: Desk, case: Case) -> None:
    """Charge the incident's culprit, once, and write down what it cost."""
    _forget(desk, case)
    charge = charge_of(desk, case)
    cost = desk.ledger.cost(case.id, desk.clock.micros)
    desk.record(case.fact(opened=False, charged=charge.kind, cost=cost), durable=True)
    desk.ledger.forget(case.id)
    goodput_marks.write_if_small(desk)
    desk.event(EventReason.INCIDENT_CLOSED, _summary(case), incident=case.id)
    if charge.kind is not None:
        _pay(desk, case, charge.kind, charge.reason)
    if case.terminal:
        desk.request_end(succeeded=False, reason=case.end_reason, text=case.terminal)


def _pay(desk: Desk, case: Case, kind: BudgetKind, why: str) -> None:
    can = budgets.afford(balance(desk, kind))
    paid = BudgetCharge(kind=kind, job_seconds=desk.clock.job_seconds, incident_id=case.id)
    desk.record(paid, durable=True)
    desk.event(EventReason.BUDGET_CHARGED, f"{why}: {can.reason}", incident=case.id)
    if not can.ok:
        desk.event(EventReason.BUDGET_EXHAUSTED, can.reason, Warn, incident=case.id)
        case.end_reason = budgets.END_REASONS[kind]
        case.terminal = f"{can.reason}; the last was: {case.best.text}"


def close_all(desk: Desk) -> None:
    """The job ends: every open incident is closed and charged."""
    for case in desk.open_cases():
        close(desk, case)


def _forget(desk: Desk, case: Case) -> None:
    desk.timers.cancel(Timer.TERMINAL, case.id)
    desk.timers.cancel(Timer.EVIDENCE, case.id)
    if desk.case is case:
        desk.case = None
    else:
        desk.cooling.remove(case)


def _summary(case: Case) -> str:
    parts = [case.best.text]
    if case.stepped_at is not None:
        parts.append(f"next step after {case.since(case.stepped_at):.2f} s")
    if case.steps_redone:
        parts.append(f"{case.steps_redone} steps redone")
    return "; ".join(parts)
