"""Points against a host: weights, decay; hosts that are suspect, nodes that are checked again."""

from __future__ import annotations

import itertools

import pytest

from holdfast_master.policies.node_history import judge, why_again
from holdfast_wire.messages import NodeStruck
from holdfast_wire.strikes import HALF_LIFE_SECONDS, NODE_SOURCE, StrikeCause

NOW = 1_000_000.0


def strike(
    cause: StrikeCause, age: float = 0.0, job: str = "", host: str = "a", rank: int = 0
) -> NodeStruck:
    """A strike against a host."""
    return NodeStruck(host=host, cause=cause, unix_time=NOW - age, job=job, node_rank=rank)


def strikes(*causes: StrikeCause, age: float = 0.0) -> list[NodeStruck]:
    """Strikes against one host, all of the same age."""
    return [strike(cause, age) for cause in causes]


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
        strike(StrikeCause.FAILURE, 10.0, host="b"),
        strike(StrikeCause.STRAGGLER, 7_000.0),
        strike(StrikeCause.HANG, 100.0),
    ]
    results = [judge(order, NOW) for order in itertools.permutations(known)]
    assert all(one == results[0] for one in results)
    assert list(results[0]) == ["a", "b"]


def test_strikes_of_other_jobs_count_alike_and_are_named() -> None:
    """A host on which two jobs had trouble is suspect in a third, which had none."""
    known = [
        strike(StrikeCause.STRAGGLER, job="team/one"),
        strike(StrikeCause.STRAGGLER, job="team/two"),
    ]
    standing = judge(known, NOW)["a"]
    assert standing.suspect
    assert standing.reason == "2.00 points of 1.5: Straggler 2 (2 of team/one, team/two)"
    own = judge([*known, strike(StrikeCause.HANG)], NOW)["a"]
    assert own.reason == "2.50 points of 1.5: Straggler 2, Hang 1 (2 of team/one, team/two)"


def test_what_the_node_itself_shows_counts_too() -> None:
    """Together with what this job met there; a cordon is next to nothing."""
    known = [
        strike(StrikeCause.CONDITION, job=NODE_SOURCE),
        strike(StrikeCause.CORDON, job=NODE_SOURCE),
        strike(StrikeCause.FAILURE),
    ]
    standing = judge(known, NOW)["a"]
    assert standing.suspect
    assert standing.reason == (
        "1.50 points of 1.5: Failure 1, Condition 1, Cordon 1 (2 of the node itself)"
    )
    assert not judge(known[1:2] * 10, NOW)["a"].suspect


def test_a_reason_names_only_some_of_many_jobs() -> None:
    """It has to fit a line."""
    known = [strike(StrikeCause.HANG, job=f"team/{number}") for number in range(9)]
    assert judge(known, NOW)["a"].reason.endswith("(9 of team/0, team/1, team/2 and 6 more)")


def again(
    *strikes: tuple[int, StrikeCause, float], rank: int = 1, judged_age: float = 900.0
) -> str:
    """The reason for a node on a host with these strikes: node, cause, age."""
    own = [strike(cause, age, rank=node) for node, cause, age in strikes]
    return why_again(rank, NOW - judged_age, own, judge(own, NOW).get("a"))


@pytest.mark.parametrize("cause", [StrikeCause.STRAGGLER, StrikeCause.HANG])
def test_what_was_laid_to_the_node_since_its_check_is_enough(cause: StrikeCause) -> None:
    """Once, and only after the verdict."""
    assert again((1, cause, 899.0)) == f"{cause.value.lower()} since its last check"
    assert not again((1, cause, 900.0))


def test_what_was_laid_to_another_node_of_the_host_is_not() -> None:
    """Unless it makes the host suspect."""
    one = (2, StrikeCause.STRAGGLER, 500.0)
    assert not again(one)
    assert not again(one, (3, StrikeCause.HANG, 1.0))
    assert again(one, (3, StrikeCause.STRAGGLER, 1.0)).startswith("its host is suspect (")


def test_crashes_count_only_as_points_of_the_host() -> None:
    """Three of them are below the limit after a moment, four are not."""
    crash = (1, StrikeCause.FAILURE, 100.0)
    assert not again(*[crash] * 2)
    assert again(*[crash] * 4).startswith("its host is suspect (1.99 points of 1.5: Failure 4)")


def test_a_suspect_host_without_anything_new_is_not_checked_again() -> None:
    """The last check has seen what was before it."""
    old = [(1, StrikeCause.STRAGGLER, 950.0), (1, StrikeCause.PREFLIGHT, 900.0)]
    assert not again(*old)
    assert again(*old, (2, StrikeCause.FAILURE, 800.0))
