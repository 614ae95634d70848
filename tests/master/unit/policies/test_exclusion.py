"""Exclusion of a straggler: gain against cost, and the job's least size."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.rendezvous import Bounds
from holdfast_master.policies.straggler.exclusion import (
    Exclude,
    NoExclusion,
    Prospects,
    decide,
    most_excluded,
)
from holdfast_master.policies.straggler.verdict import StragglerVerdict, Subject


def verdict(
    percent: float = 50.0, subject: Subject = Subject.NODE, node: str = "n1"
) -> StragglerVerdict:
    """An accusation of one node."""
    return StragglerVerdict(
        subject=subject,
        node="" if subject is Subject.JOB else node,
        ranks=(1,),
        since_step=100,
        percent=percent,
        node_seconds_per_hour=4800.0,
        considered=(),
        reason="n1 is slow",
    )


def prospects(
    members: int = 4, standbys: int = 0, least: int = 2, cost: float = 60.0, unit: int = 1
) -> Prospects:
    """A job of four nodes, an hour long."""
    bounds = Bounds(minimum=least, replicas=4, maximum=8, unit=unit)
    return Prospects(members=members, standbys=standbys, bounds=bounds, window=3600.0, cost=cost)


TABLE = [
    (verdict(), prospects(standbys=1), True, "4 nodes without n1 train 1.50 times"),
    (verdict(), prospects(), True, "3 nodes without n1 train 1.12 times"),
    (verdict(subject=Subject.RANK), prospects(), True, "3 nodes without n1"),
    (verdict(subject=Subject.LINK), prospects(), True, "3 nodes without n1"),
    (verdict(), prospects(cost=500.0), False, "a rescale costs 8.33 min"),
    (verdict(30.0), prospects(), False, "a gain of 0 ms"),
    (verdict(30.0), prospects(standbys=1), True, "1.30 times"),
    (verdict(1.0), prospects(standbys=1), False, "a gain of 36 s"),
    (verdict(), prospects(least=4), False, "fewer than the 4 nodes that the job needs"),
    (verdict(), prospects(least=4, standbys=1), True, "4 nodes"),
    (verdict(), prospects(unit=2), False, "2 nodes without n1 train 0.75 times"),
    (verdict(subject=Subject.JOB), prospects(standbys=1), False, "no node is accused"),
]


@pytest.mark.parametrize(("accusation", "view", "leaves", "says"), TABLE)
def test_a_node_goes_if_that_pays(
    accusation: StragglerVerdict, view: Prospects, *, leaves: bool, says: str
) -> None:
    """A standby takes its place, or the world goes on smaller; else it stays."""
    found = decide([accusation], view)
    assert says in found.reason
    assert isinstance(found, Exclude) is leaves


def test_two_slow_nodes_leave_together() -> None:
    """One of them alone would gain nothing: the world goes at the other one's pace."""
    both = [verdict(60.0), verdict(50.0, node="n2"), verdict(55.0, Subject.RANK, node="n2")]
    found = decide(both, prospects(standbys=2))
    assert isinstance(found, Exclude)
    assert found.nodes == ("n1", "n2")
    found = decide(both, prospects(standbys=1))
    assert isinstance(found, Exclude)
    assert found.nodes == ("n1", "n2")
    assert isinstance(decide(both, prospects(least=3)), NoExclusion)


def test_the_slower_of_two_leaves_where_the_other_is_hardly_slow() -> None:
    """As many nodes leave as gain most."""
    found = decide([verdict(150.0), verdict(10.0, node="n2")], prospects())
    assert isinstance(found, Exclude)
    assert found.nodes == ("n1",)


def test_few_nodes_leave_within_a_time_whatever_is_gained() -> None:
    """A wrong judgement cannot drain a job node by node, and people are told why a node stays."""
    for excluded, leaves in ((0, True), (1, True), (2, False), (5, False)):
        view = dataclasses.replace(prospects(standbys=3), excluded=excluded)
        found = decide([verdict(200.0)], view)
        assert isinstance(found, Exclude) is leaves
    found = decide([verdict(200.0)], dataclasses.replace(prospects(), excluded=5))
    assert found.reason.startswith("5 nodes left for being slow within 6 h, and no more may")


def test_only_as_many_nodes_leave_together_as_the_cap_leaves_room_for() -> None:
    """Where that gains nothing, the reason names the room."""
    both = [verdict(60.0), verdict(50.0, node="n2")]
    found = decide(both, dataclasses.replace(prospects(standbys=2), excluded=1))
    assert isinstance(found, Exclude)
    assert found.nodes == ("n1",)
    found = decide(both, dataclasses.replace(prospects(), excluded=1))
    assert isinstance(found, NoExclusion)
    assert found.reason.endswith("1 more node may leave now")


@pytest.mark.parametrize(("members", "most"), [(1, 2), (4, 2), (29, 2), (30, 3), (10_000, 1000)])
def test_a_tenth_of_a_large_world_may_leave(members: int, most: int) -> None:
    """Of a small world two nodes."""
    assert most_excluded(members) == most


@given(
    percent=st.floats(0, 1000),
    members=st.integers(1, 20),
    standbys=st.integers(0, 3),
    least=st.integers(1, 20),
    cost=st.floats(0, 1e4),
    unit=st.integers(1, 4),
)
def test_no_exclusion_leaves_too_few_or_costs_more_than_it_gains(
    percent: float, members: int, standbys: int, least: int, cost: float, unit: int
) -> None:
    """For any job."""
    view = prospects(members, standbys, least, cost, unit)
    found = decide([verdict(percent)], view)
    size = view.bounds.fit(members - 1 + min(1, standbys))
    gain = view.window * ((1 + percent / 100) * size / members - 1)
    assert isinstance(found, Exclude) == (size > 0 and gain > cost)
    assert isinstance(found, Exclude | NoExclusion)
