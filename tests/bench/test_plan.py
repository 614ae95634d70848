"""Trials of a run of the recovery benchmark, and their order."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.recovery.plan import PLANS, QUICK, RECORD, Trials, cases, chosen, estimate_s
from bench.recovery.scenarios import SCENARIOS
from bench.recovery.trial import SYSTEMS


@pytest.mark.parametrize(("plan", "minutes"), [("record", 35), ("quick", 6)])
def test_a_plan_fits_into_its_time(plan: str, minutes: float) -> None:
    """The estimate is of an idle machine of two cores."""
    assert estimate_s(PLANS[plan]) / 60 <= minutes


@pytest.mark.parametrize("row", [*RECORD, *QUICK], ids=lambda row: f"{row.system}-{row.scenario}")
def test_every_row_can_be_run(row: Trials) -> None:
    """A plan names only scenarios and systems that exist."""
    assert row.scenario in SCENARIOS
    assert row.system in SYSTEMS
    assert row.trials > 0


def test_every_promise_of_the_record_rests_on_eight_trials() -> None:
    """Eight crashes, losses and freezes of Holdfast for each restore that a promise names."""
    counted: Counter[tuple[str, str]] = Counter()
    for row in RECORD:
        if row.system == "holdfast":
            counted[row.scenario, row.restore] += row.trials * (2 if row.scenario == "crash" else 1)
    wanted = [("crash", "torch"), ("crash", "dcp"), ("node-lost", "torch"), ("node-lost", "dcp")]
    assert all(counted[key] >= 8 for key in [*wanted, ("agent-frozen", "torch")])


def test_trials_are_interleaved() -> None:
    """A, B, A, B, and not A, A, B, B: a slower machine is slower for all."""
    rows = [Trials("crash", "a", "default", 3), Trials("crash", "b", "default", 3)]
    assert [case.system for case in cases(rows)] == ["a", "b"] * 3


def test_rows_with_fewer_trials_are_spread_over_the_run() -> None:
    """Two trials beside six fall into its first and its second half."""
    rows = [Trials("crash", "a", "default", 6), Trials("crash", "b", "default", 2)]
    order = "".join(case.system for case in cases(rows))
    assert order == "abaaabaa"


def test_both_ranks_take_turns() -> None:
    """Crash cases hit the two ranks in turn. The rank does not matter to the promise."""
    targets = [case.target for case in cases([Trials("crash", "a", "default", 4)])]
    assert targets == [0, 1, 0, 1]


def test_repetitions_replace_the_plans_own_numbers() -> None:
    """One of each is enough to try things out."""
    assert len(cases(RECORD, repetitions=1)) == len(RECORD)


def test_a_choice_leaves_out_the_others() -> None:
    """By system and by scenario; no choice takes all."""
    only = chosen(RECORD, systems=["dlrover"], scenarios=["crash"])
    assert {(row.system, row.scenario) for row in only} == {("dlrover", "crash")}
    assert chosen(RECORD) == list(RECORD)
