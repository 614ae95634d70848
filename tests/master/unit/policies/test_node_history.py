"""Points against a host: their weights, their decay, and a host that is suspect."""

from __future__ import annotations

import itertools

import pytest

from holdfast_master.policies.node_history import Strike, judge
from holdfast_wire.strikes import HALF_LIFE_SECONDS, NODE_SOURCE, StrikeCause

NOW = 1_000_000.0


def strikes(*causes: StrikeCause, age: float = 0.0) -> list[Strike]:
    """Strikes against one host, all of the same age."""
    return [Strike("a", cause, NOW - age) for cause in causes]


@pytest.mark.parametrize(
    ("causes", "suspect"),
    [
        ([StrikeCause.PREFLIGHT], False),
        ([StrikeCause.PREFLIGHT, StrikeCause.STRAGGLER], True),
        ([StrikeCause.FAILURE, StrikeCause.FAILURE], False),
        ([StrikeCause.FAILURE] * 3, True),
        ([StrikeCause.STRAGGLER, StrikeCause.HANG], True),
    ],
)
def test_a_host_is_suspect_for_several_strikes(causes: list[StrikeCause], suspect: bool) -> None:  # noqa: FBT001 - a column
    """One strike never is enough, however heavy."""
    assert judge(strikes(*causes), NOW)["a"].suspect is suspect


def test_strikes_lose_half_of_their_weight_in_a_half_life() -> None:
    """A host that was blamed yesterday is as good as any."""
    causes = [StrikeCause.PREFLIGHT, StrikeCause.STRAGGLER]
    fresh = judge(strikes(*causes), NOW)["a"].points
    assert judge(strikes(*causes, age=HALF_LIFE_SECONDS), NOW)["a"].points == pytest.approx(
        fresh / 2
    )
    assert not judge(strikes(*causes, age=HALF_LIFE_SECONDS), NOW)["a"].suspect


def test_a_clock_that_was_ahead_adds_nothing() -> None:
    """A strike from the future weighs as much as one from now."""
    assert judge(strikes(StrikeCause.HANG, age=-1e6), NOW)["a"].points == 0.5


def test_the_order_of_strikes_does_not_matter() -> None:
    """Hosts are judged apart, and alike in every order."""
    known = [
        Strike("b", StrikeCause.FAILURE, NOW - 10.0),
        Strike("a", StrikeCause.STRAGGLER, NOW - 7_000.0),
        Strike("a", StrikeCause.HANG, NOW - 100.0),
    ]
    results = [judge(order, NOW) for order in itertools.permutations(known)]
    assert all(one == results[0] for one in results)
    assert list(results[0]) == ["a", "b"]


def test_strikes_of_other_jobs_count_alike_and_are_named() -> None:
    """A host on which two jobs had trouble is suspect in a third, which had none."""
    known = [
        Strike("a", StrikeCause.STRAGGLER, NOW, "team/one"),
        Strike("a", StrikeCause.STRAGGLER, NOW, "team/two"),
    ]
    standing = judge(known, NOW)["a"]
    assert standing.suspect
    assert standing.reason == "2.00 points of 1.5: Straggler 2 (2 of team/one, team/two)"
    own = judge([*known, Strike("a", StrikeCause.HANG, NOW)], NOW)["a"]
    assert own.reason == "2.50 points of 1.5: Straggler 2, Hang 1 (2 of team/one, team/two)"


def test_what_the_node_itself_shows_counts_too() -> None:
    """Together with what this job met there; a cordon is next to nothing."""
    known = [
        Strike("a", StrikeCause.CONDITION, NOW, NODE_SOURCE),
        Strike("a", StrikeCause.CORDON, NOW, NODE_SOURCE),
        Strike("a", StrikeCause.FAILURE, NOW),
    ]
    standing = judge(known, NOW)["a"]
    assert standing.suspect
    assert standing.reason == (
        "1.50 points of 1.5: Failure 1, Condition 1, Cordon 1 (2 of the node itself)"
    )
    assert not judge(known[1:2] * 10, NOW)["a"].suspect


def test_a_reason_names_only_some_of_many_jobs() -> None:
    """It has to fit a line."""
    known = [Strike("a", StrikeCause.HANG, NOW, f"team/{number}") for number in range(9)]
    assert judge(known, NOW)["a"].reason.endswith("(9 of team/0, team/1, team/2 and 6 more)")
