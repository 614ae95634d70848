"""Nodes that new pods avoid for what several jobs met there: who, how many, until when."""

from __future__ import annotations

import dataclasses
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_operator.plan.node_exclusion import EXCLUDED_FROM, exclude, points, with_room
from holdfast_operator.plan.node_strikes import NodeStrike
from holdfast_wire.strikes import HALF_LIFE_SECONDS, NODE_SOURCE, StrikeCause

NOW: Final = 1_700_000_000.0
NODES: Final = frozenset(f"n{number}" for number in range(20))
_HEAVY: Final = StrikeCause.STRAGGLER


def strike(host: str, job: str, cause: StrikeCause = _HEAVY, age: float = 0.0) -> NodeStrike:
    """A strike of a job."""
    return NodeStrike(
        host=host,
        cause=cause,
        at=NOW - age,
        job=f"team/{job}",
        job_uid=f"u-{job}",
        node_rank=0,
        text="it was slow",
    )


def hosts(
    strikes: list[NodeStrike], percent: float = 10.0, nodes: frozenset[str] = NODES
) -> list[str]:
    """Names of the excluded nodes, the worst first."""
    return [one.host for one in exclude(strikes, nodes, percent, NOW)]


def test_one_job_alone_excludes_no_node() -> None:
    """However often its script crashes, and wherever."""
    crashes = [strike(host, "a", StrikeCause.FAILURE) for host in NODES for _ in range(50)]
    assert hosts(crashes) == []
    assert points(crashes[:50], NOW) == 1.0


def test_two_jobs_with_trouble_on_a_node_exclude_it() -> None:
    """The reason says which, and with what; it stays the same while points decay."""
    known = [
        strike("n1", "a"),
        strike("n1", "b", StrikeCause.HANG),
        strike("n1", "b", StrikeCause.FAILURE),
        strike("n2", "a"),
    ]
    (one,) = exclude(known, NODES, 10.0, NOW)
    assert (one.host, one.points) == ("n1", 2.0)
    assert one.reason == "Straggler 1 in team/a; Failure 1, Hang 1 in team/b"
    (later,) = exclude(known, NODES, 10.0, NOW + 600.0)
    assert later.points < one.points
    assert later.reason == one.reason


def test_all_that_a_node_shows_counts_as_one_source() -> None:
    """One fault sets several conditions and leads to a cordon: a job must have met it, too."""
    shown = [
        dataclasses.replace(strike("n1", "x", cause), job=NODE_SOURCE, job_uid=NODE_SOURCE)
        for cause in (StrikeCause.CONDITION, StrikeCause.CONDITION, StrikeCause.CORDON)
    ]
    assert hosts(shown) == []
    (one,) = exclude([*shown, strike("n1", "a")], NODES, 10.0, NOW)
    assert one.reason == "Condition 2, Cordon 1 of the node itself; Straggler 1 in team/a"


@pytest.mark.parametrize(
    ("teams", "others", "bad"),
    [
        (("red", "red", "red"), (), False),
        (("red", "blue", "blue"), (), True),
        (("red", "red"), (StrikeCause.STRAGGLER,), True),
        (("red",), (StrikeCause.STRAGGLER,), True),
        ((), (StrikeCause.STRAGGLER,), False),
    ],
)
def test_crashes_of_one_namespace_are_taken_for_those_of_one_script(
    teams: tuple[str, ...],
    others: tuple[StrikeCause, ...],
    bad: bool,  # noqa: FBT001 - a column
) -> None:
    """People submit a job again that crashed: its nodes are as good as any."""
    known = [
        dataclasses.replace(strike("n1", f"{team}-{number}", cause), job=f"{team}/{number}")
        for number, team in enumerate(teams)
        for cause in (StrikeCause.FAILURE, StrikeCause.HANG)
    ]
    known += [strike("n1", f"slow-{number}", cause) for number, cause in enumerate(others)]
    assert (hosts(known) == ["n1"]) is bad


def test_an_exclusion_ends_when_its_points_have_decayed() -> None:
    """Nobody has to take it back."""
    known = [strike("n1", "a"), strike("n1", "b")]
    seconds = HALF_LIFE_SECONDS * 0.415
    assert exclude(known, NODES, 10.0, NOW + seconds - 60.0)
    assert not exclude(known, NODES, 10.0, NOW + seconds + 60.0)


@pytest.mark.parametrize(
    ("nodes", "percent", "most"),
    [(20, 10.0, 2), (9, 10.0, 1), (2, 10.0, 1), (1, 10.0, 0), (20, 0.0, 0), (3, 100.0, 2)],
)
def test_only_a_share_of_the_nodes_is_excluded(nodes: int, percent: float, most: int) -> None:
    """The worst ones; never the last node, and none where it is turned off."""
    names = [f"n{number:02}" for number in range(nodes)]
    known = [strike(name, job) for name in names for job in "ab"]
    known += [strike(names[-1], "c")]
    found = hosts(known, percent, frozenset(names))
    assert len(found) == most
    if most:
        assert found[0] == names[-1]
        assert found[1:] == names[: most - 1]


def test_a_node_that_is_gone_takes_no_room() -> None:
    """Its strikes stay, for a node that is made anew under its name."""
    known = [strike(name, job) for name in ("gone", "n1") for job in "abc"[: 2 + (name == "gone")]]
    assert hosts(known, percent=5.0) == ["n1"]


def test_a_job_keeps_as_many_nodes_as_it_has_workers() -> None:
    """In a small cluster it would wait for hours otherwise."""
    known = [strike(name, job) for name in ("n1", "n2") for job in "ab"]
    found = exclude(known, NODES, 10.0, NOW)
    assert [one.host for one in with_room(found, len(NODES), 18)] == ["n1", "n2"]
    assert [one.host for one in with_room(found, len(NODES), 19)] == ["n1"]
    assert with_room(found, len(NODES), 20) == with_room(found, len(NODES), 99) == ()


STRIKES = st.builds(
    strike,
    host=st.sampled_from([*sorted(NODES)[:4], "gone"]),
    job=st.sampled_from("abc"),
    cause=st.sampled_from(StrikeCause),
    age=st.floats(0.0, 86_400.0),
)


@given(st.lists(STRIKES), st.floats(0.0, 100.0), st.randoms())
def test_the_bounds_hold_in_any_order(
    known: list[NodeStrike], percent: float, luck: object
) -> None:
    """Two jobs at least, the threshold, the cap; and the order of strikes is no matter."""
    found = exclude(known, NODES, percent, NOW)
    assert len(found) <= max(1, len(NODES) * percent / 100)
    assert list(found) == sorted(found, key=lambda one: (-one.points, one.host))
    for one in found:
        assert one.points >= EXCLUDED_FROM
        assert len({known_.job for known_ in known if known_.host == one.host}) > 1
    luck.shuffle(known)  # type: ignore[attr-defined]
    again = exclude(known, NODES, percent, NOW)
    assert [(one.host, one.reason) for one in again] == [(one.host, one.reason) for one in found]
