"""A change of members carried out between real ranks, from standings that crashes leave behind."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from local_sgd.regroups import DELTA, Regroups

pytestmark = [pytest.mark.train, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def regroups() -> Iterator[Regroups]:
    """One process with torch for all tests here."""
    with Regroups(PYTHONWARNINGS="ignore", GLOO_SOCKET_IFNAME="lo") as started:
        yield started


def test_units_go_to_those_behind_and_to_joiners_with_outer_state_and_position(
    regroups: Regroups,
) -> None:
    """One has finished two units, one has one, a third joins: all have the same bits afterwards.

    The delta of the one behind is in the anchor that it is given, so its weights become that
    anchor. Where nobody is ahead each keeps its delta.
    """
    ahead, behind, joiner = regroups.change([
        {"rounds": [3, 3, 2], "begun": [2], "steps": 8},
        {"rounds": [3, 2, 2], "begun": [1, 2], "steps": 8},
        {"new": True},
    ])  # fmt: skip
    for one in (behind, joiner):
        assert one["rounds"] == [3, 3, 2]
        assert one["again"] == [2]
        assert one["anchors"] == ahead["anchors"]
        assert one["outer"] == ahead["outer"]
        assert not one["passed"]
    assert behind["weights"][1] == ahead["anchors"][1]
    assert behind["weights"][2] == pytest.approx([x - DELTA for x in behind["anchors"][2]])
    assert joiner["weights"] == joiner["anchors"]
    assert (joiner["joined"], joiner["steps"], joiner["due"]) == (True, 8, True)
    assert json.loads(joiner["position"]) == {"from": 0}
    assert (ahead["joined"], behind["joined"]) == (False, False)


def test_a_joiner_gets_moments_and_buffers_of_those_who_train(regroups: Regroups) -> None:
    """A unit's moments come with the unit, by the bit; buffers from one, but what no file has."""
    first, second, joiner = regroups.change([
        {"rounds": [2, 2, 2], "inner": 1.0, "buffers": 3.0},
        {"rounds": [2, 2, 2], "inner": 2.0, "buffers": 4.0},
        {"new": True},
    ])  # fmt: skip
    for unit, moments in enumerate(joiner["moments"]):
        assert moments in (first["moments"][unit], second["moments"][unit])
    assert joiner["buffers"] == {**first["buffers"], "rotary": [0.0, 0.0]}
    assert first["buffers"]["running_mean"] == [3.0, 3.0]
    assert second["buffers"]["running_mean"] == [4.0, 4.0]


def test_a_joiner_in_the_warm_up_gets_moments_too(regroups: Regroups) -> None:
    """Nobody has anchors yet: moments and buffers come from the one that gives its weights."""
    trains, joiner = regroups.change(
        [{"trains": True, "inner": 2.0, "steps": 2}, {"new": True}], may_fail=True
    )
    assert joiner["moments"] == trains["moments"]
    assert joiner["buffers"]["running_var"] == [2.0, 2.0]


def test_moments_that_are_not_finite_stay_with_their_replica(regroups: Regroups) -> None:
    """The joiner begins with fresh ones, and keeps its own buffers where those are NaN."""
    _, joiner = regroups.change([
        {"rounds": [1, 1, 1], "inner": float("inf"), "buffers": 7.0}, {"new": True}
    ])  # fmt: skip
    assert joiner["moments"] == [None, [2.0, []], None]
    assert joiner["buffers"]["running_mean"] == [7.0, 7.0]


def test_a_replica_that_was_left_out_for_two_rounds_goes_on_with_its_discounted_delta(
    regroups: Regroups,
) -> None:
    """It had begun nothing: its weights are A' - d²Δ, and a quarter of its steps counts.

    It goes on from the step and the position of who trains, as one that joins at that moment does.
    """
    newest, late, joiner = regroups.change([
        {"rounds": [4, 4, 4], "steps": 32}, {"rounds": [2, 2, 2], "steps": 16}, {"new": True}
    ])  # fmt: skip
    for one in (late, joiner):
        assert (one["steps"], json.loads(one["position"])) == (32, {"from": 0})
    assert [one["behind"] for one in (newest, late, joiner)] == [False, True, False]
    assert late["anchors"] == newest["anchors"]
    assert late["outer"] == newest["outer"]
    assert (late["passed"], late["kept"]) == (True, 0.25)
    for weights, anchors in zip(late["weights"], late["anchors"], strict=True):
        assert weights == pytest.approx([x - 0.25 * DELTA for x in anchors])


def test_those_who_wait_for_nobody_begin_the_round_that_one_has_begun(regroups: Regroups) -> None:
    """One has ended the round alone and begun the next: the other is given the end, then both go.

    The other's delta is in the round that it was given, so none of its steps counts again.
    """
    ahead, behind = regroups.change([
        {"rounds": [3, 3, 3], "begun": [0, 1]},
        {"rounds": [3, 3, 2], "begun": [2]},
    ])  # fmt: skip
    assert ahead["again"] == behind["again"] == [0, 1, 2]
    assert (ahead["passed"], behind["passed"]) == (False, True)
    assert behind["kept"] == 0
    assert behind["weights"][2] == ahead["anchors"][2]


def test_replicas_without_anchors_begin_together(regroups: Regroups) -> None:
    """Nobody has been in a group: nobody joins anybody."""
    for one in regroups.change([{"new": True}] * 2, may_fail=True):
        assert "has no anchors" in one["error"]  # the world asks for them; the change went well


def test_replicas_of_unlike_models_are_told(regroups: Regroups) -> None:
    """Their units have other shapes: an error that names both replicas."""
    answers = regroups.change([{"rounds": [1] * 3}, {"new": True, "odd": 1}], may_fail=True)
    for one in answers:
        assert "replicas 10 and 11 have units of unlike names, shapes or dtypes" in one["error"]
