"""Blame for an incident, the budget that it spends and the rule that answers it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.failure import (
    PLANNED,
    STRENGTH,
    Evidence,
    EvidenceKind,
    charge,
    culprit,
    respond,
    strongest,
    worker_kind,
)
from holdfast_wire.messages import BudgetKind, FailureAction, FailureRule

Kind = EvidenceKind
RESTART = FailureAction.RESTART_IN_PLACE


def seen(kind: EvidenceKind, at: float = 1.0, node: int = 0, **more: object) -> Evidence:
    """Evidence about a node."""
    return Evidence(kind=kind, text=kind.value, at=at, node_rank=node, **more)  # type: ignore[arg-type]


BLAME = [
    # a survivor's exception that outran the culprit's report
    ([seen(Kind.WORKER_RAISED, 1.0, 1), seen(Kind.WORKER_CRASHED, 1.1, 0)], 0),
    ([seen(Kind.WORKER_RAISED, 1.0, 1), seen(Kind.OUT_OF_MEMORY, 1.1, 0)], 0),
    ([seen(Kind.WORKER_RAISED, 1.0, 1), seen(Kind.AGENT_SILENT, 5.0, 0)], 0),
    ([seen(Kind.WORKER_EXITED, 1.0, 1), seen(Kind.WORKER_RAISED, 1.2, 0)], 0),
    ([seen(Kind.WORKERS_MISSING, 1.0, 1), seen(Kind.WORKER_EXITED, 1.2, 0)], 0),
    # a code that the script chose is no echo; exit code 1 can be one
    ([seen(Kind.WORKER_RAISED, 1.0, 1), seen(Kind.WORKER_EXITED, 1.2, 0, exit_code=42)], 0),
    ([seen(Kind.WORKER_EXITED, 1.0, 1, exit_code=1), seen(Kind.WORKER_RAISED, 1.2, 0)], 0),
    ([seen(Kind.WORKER_EXITED, 1.0, 1, exit_code=42), seen(Kind.WORKER_CRASHED, 1.2, 0)], 0),
    # ranks that are ended for a hang say so later
    ([seen(Kind.WORKER_CRASHED, 9.0, 1), seen(Kind.HUNG, 1.0, 0)], 0),
    # within a kind of evidence the earliest, whenever it was told
    ([seen(Kind.WORKER_RAISED, 1.2, 1), seen(Kind.WORKER_RAISED, 1.1, 0)], 0),
    ([seen(Kind.WORKER_CRASHED, 1.2, 1), seen(Kind.POD_FAILED, 1.1, 0)], 0),
    # a node that was taken away explains even the signals of others
    ([seen(Kind.WORKER_CRASHED, 1.0, 1), seen(Kind.PREEMPTED, 9.0, 0)], 0),
    ([seen(Kind.WORKER_CRASHED, 1.0, 1), seen(Kind.NODE_REMOVED, 9.0, 0)], 0),
    # a wanted change explains nothing once something failed
    ([seen(Kind.RESCALED, 0.0, 1), seen(Kind.WORKER_EXITED, 9.0, 0)], 0),
    # ties
    ([seen(Kind.WORKER_CRASHED, 1.0, 1), seen(Kind.WORKER_CRASHED, 1.0, 0)], 0),
]


@pytest.mark.parametrize(("evidence", "node"), BLAME)
def test_culprit(evidence: list[Evidence], node: int) -> None:
    """The culprit is named whoever reports first."""
    for order in itertools.permutations(evidence):
        assert culprit(order).node_rank == node


def test_a_pods_own_end_says_more_than_its_silence() -> None:
    """Of one node's silence and its pod's end at the same time, the end is what people see."""
    found = culprit([seen(Kind.AGENT_SILENT), seen(Kind.POD_FAILED, exit_code=-9)])
    assert found.kind is Kind.POD_FAILED


CHARGES = [
    (Kind.WORKER_CRASHED, RESTART, True, BudgetKind.FAILURES),
    (Kind.WORKER_CRASHED, RESTART, False, BudgetKind.NO_PROGRESS),
    (Kind.OUT_OF_MEMORY, RESTART, True, BudgetKind.FAILURES),
    (Kind.WORKER_CRASHED, FailureAction.IGNORE, False, None),
    (Kind.WORKER_RAISED, FailureAction.REPLACE_POD, True, BudgetKind.FAILURES),
    (Kind.POD_FAILED, RESTART, True, BudgetKind.FAILURES),
    (Kind.AGENT_SILENT, RESTART, True, BudgetKind.FAILURES),
    (Kind.LEASE_EXPIRED, RESTART, True, BudgetKind.FAILURES),
    (Kind.HUNG, RESTART, True, BudgetKind.FAILURES),
    (Kind.HUNG, RESTART, False, BudgetKind.NO_PROGRESS),
    (Kind.WORKERS_MISSING, RESTART, False, BudgetKind.NO_PROGRESS),
    (Kind.PREEMPTED, RESTART, True, BudgetKind.PREEMPTIONS),
    (Kind.PREEMPTED, RESTART, False, BudgetKind.PREEMPTIONS),
    (Kind.AGENT_LEFT, RESTART, True, BudgetKind.RESCALES),
    (Kind.NODE_REMOVED, RESTART, False, None),
    (Kind.DRAINED, RESTART, False, None),
    (Kind.RESTART_ASKED, RESTART, False, None),
    (Kind.ROUND_LOST, RESTART, False, None),
]


@pytest.mark.parametrize(("kind", "action", "progressed", "budget"), CHARGES)
def test_charge(
    *, kind: EvidenceKind, action: FailureAction, progressed: bool, budget: BudgetKind | None
) -> None:
    """Exactly one budget, or none, and why."""
    verdict = charge(seen(kind), action, progressed=progressed, asked=True)
    assert verdict.kind is budget
    assert verdict.reason


def test_a_change_of_size_that_nobody_asked_for_is_charged() -> None:
    """Growing by a node that was never lost is a rescale; one that a person wanted is free."""
    free = charge(seen(Kind.RESCALED), RESTART, progressed=True, asked=True)
    paid = charge(seen(Kind.RESCALED), RESTART, progressed=True, asked=False)
    assert (free.kind, paid.kind) == (None, BudgetKind.RESCALES)


KINDS = st.sampled_from(list(EvidenceKind))
EVIDENCE = st.builds(seen, KINDS, st.floats(0, 100), st.integers(0, 5))


@given(evidence=st.lists(EVIDENCE, min_size=1, max_size=8), progressed=st.booleans())
def test_a_preemption_never_spends_the_failure_budget(
    *, evidence: list[Evidence], progressed: bool
) -> None:
    """Whatever else was reported: with a node taken away, failures and no-progress are spared."""
    taken = [*evidence, seen(Kind.PREEMPTED, 50.0)]
    verdict = charge(culprit(taken), RESTART, progressed=progressed, asked=False)
    assert verdict.kind in {BudgetKind.PREEMPTIONS, None}


@given(st.permutations(range(6)), st.lists(EVIDENCE, min_size=6, max_size=6))
def test_order_of_arrival_never_matters(order: list[int], evidence: list[Evidence]) -> None:
    """The culprit of a set of evidence is one, found also piece by piece."""
    shuffled = [evidence[index] for index in order]
    best = shuffled[0]
    for item in shuffled[1:]:
        best = culprit((best, item))
    assert best == culprit(evidence)


def test_every_kind_has_a_strength() -> None:
    """No evidence is without a rank; what is planned is the weakest."""
    assert STRENGTH.keys() == set(EvidenceKind)
    assert {STRENGTH[kind] for kind in PLANNED} == {0}
    assert strongest([Kind.RESCALED, Kind.PREEMPTED, Kind.DRAINED]) is Kind.PREEMPTED


ENDS = [
    (-9, "", Kind.WORKER_CRASHED),
    (-11, "RuntimeError", Kind.WORKER_CRASHED),
    (137, "", Kind.WORKER_CRASHED),
    (128, "", Kind.WORKER_EXITED),
    (255, "", Kind.WORKER_EXITED),
    (1, "ValueError", Kind.WORKER_RAISED),
    (1, "", Kind.WORKER_EXITED),
]


@pytest.mark.parametrize(("code", "error", "kind"), ENDS)
def test_what_a_workers_end_is_evidence_of(code: int, error: str, kind: EvidenceKind) -> None:
    """Signal, exception with an error file, or a bare exit code."""
    assert worker_kind(code, error) is kind


@pytest.mark.parametrize(
    ("code", "kills", "kind"),
    [
        (-9, 1, Kind.OUT_OF_MEMORY),
        (137, 3, Kind.OUT_OF_MEMORY),
        (-9, 0, Kind.WORKER_CRASHED),
        (-11, 1, Kind.WORKER_CRASHED),
        (1, 1, Kind.WORKER_EXITED),
    ],
)
def test_a_sigkill_beside_a_kill_for_lack_of_memory_is_that_kill(
    code: int, kills: int, kind: EvidenceKind
) -> None:
    """Other ends have reasons of their own, whatever else the kernel ended."""
    assert worker_kind(code, "", kills) is kind


def rule(action: FailureAction, **matcher: object) -> FailureRule:
    """A failure rule."""
    return FailureRule(action=action, **matcher)  # type: ignore[arg-type]


OOM = rule(FailureAction.REPLACE_POD, exit_codes=(137,))
BUG = rule(FailureAction.FAIL_JOB, exit_codes=(1, 2))
ODD = rule(FailureAction.IGNORE, exit_codes=(1, 2, 137), exit_codes_not_in=True)
DISK = rule(FailureAction.REPLACE_ON_OTHER_NODE, pod_conditions=("DiskPressure=True",))
NCCL = rule(FailureAction.RESTART_IN_PLACE, log_pattern="NCCL.*timeout")
RULES = (OOM, BUG, ODD, DISK, NCCL)

RESPONSES = [
    (seen(Kind.WORKER_CRASHED, exit_code=-9), FailureAction.REPLACE_POD, "rules[0]"),
    (seen(Kind.WORKER_EXITED, exit_code=137), FailureAction.REPLACE_POD, "exit code 137"),
    (seen(Kind.WORKER_RAISED, exit_code=1), FailureAction.FAIL_JOB, "rules[1]"),
    (seen(Kind.WORKER_EXITED, exit_code=77), FailureAction.IGNORE, "exit code 77"),
    (seen(Kind.POD_FAILED, exit_code=0), RESTART, "no failure rule"),
    (seen(Kind.AGENT_SILENT), RESTART, "no failure rule"),
    (
        seen(Kind.POD_FAILED, conditions=("DiskPressure=True",)),
        FailureAction.REPLACE_ON_OTHER_NODE,
        "DiskPressure=True",
    ),
    (seen(Kind.AGENT_SILENT, matched=(NCCL,)), RESTART, "NCCL"),
    (seen(Kind.RESTART_ASKED, exit_code=1), RESTART, "no failure rule"),
    # what ended on a node that was taken away has no exit code of its own, but conditions
    (seen(Kind.PREEMPTED, exit_code=-9), RESTART, "no failure rule"),
    (seen(Kind.PREEMPTED, exit_code=1), RESTART, "no failure rule"),
    (seen(Kind.NODE_REMOVED, exit_code=255), RESTART, "no failure rule"),
    (
        seen(Kind.PREEMPTED, exit_code=1, conditions=("DiskPressure=True",)),
        FailureAction.REPLACE_ON_OTHER_NODE,
        "DiskPressure=True",
    ),
]


@pytest.mark.parametrize(("item", "action", "says"), RESPONSES)
def test_first_matching_rule_answers(item: Evidence, action: FailureAction, says: str) -> None:
    """Rules are looked at in order; the reason names the rule and what matched."""
    verdict = respond(item, RULES)
    assert verdict.action is action
    assert says in verdict.reason


def test_a_rule_without_a_matcher_matches_nothing() -> None:
    """An empty rule is no catch-all."""
    empty = rule(FailureAction.FAIL_JOB)
    assert respond(seen(Kind.WORKER_CRASHED, exit_code=-9), [empty]).action is RESTART
