"""Strikes of all jobs: kept, forgotten, bounded, read back; the nodes that pods avoid for them."""

from __future__ import annotations

import dataclasses
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_operator.nodes import strikes
from holdfast_operator.nodes.strikes import (
    AHEAD_SECONDS,
    FORMAT,
    KEPT,
    DamagedHistoryError,
    NodeStrike,
    exclude,
    from_data,
    merge,
    of_job,
    points,
    to_data,
    with_room,
)
from holdfast_wire.messages import NodeStruck
from holdfast_wire.strikes import HALF_LIFE_SECONDS, NODE_SOURCE, SUSPECT_FROM, StrikeCause

NOW = 1_700_000_000.0
NODES: Final = frozenset(f"n{number}" for number in range(20))


def strike(host: str = "a", at: float = NOW, **fields: object) -> NodeStrike:
    """A strike of one job."""
    made = NodeStrike(
        host=host,
        cause=StrikeCause.FAILURE,
        unix_time=at,
        job="team/t",
        job_uid="u-1",
        text="rank 0 was ended by signal 9",
    )
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


STRIKES = st.builds(
    strike,
    host=st.sampled_from("abc"),
    at=st.floats(NOW - 3 * 86_400, NOW + 86_400),
    cause=st.sampled_from(StrikeCause),
    job_uid=st.sampled_from(["u-1", "u-2"]),
)


def test_a_condition_that_flaps_crowds_out_no_other_node() -> None:
    """It counts once, at its newest time; another condition of the node counts by itself."""
    shown = {"job": "node", "job_uid": "node", "cause": StrikeCause.CONDITION}
    slow = strike("other", NOW - 7200, cause=StrikeCause.STRAGGLER)
    kept: tuple[NodeStrike, ...] = (slow,)
    for turn in range(KEPT + 10):
        kept = merge(
            kept, [strike("a", NOW - KEPT + turn, text="condition x is True", **shown)], NOW
        )
    other = strike("a", NOW, text="condition y is True", **shown)
    newest = strike("a", NOW + 9, text="condition x is True", **shown)
    assert merge([other], kept, NOW) == (slow, other, newest)


@given(st.lists(STRIKES), st.lists(STRIKES))
def test_neither_order_nor_repetition_matters(
    first: list[NodeStrike], second: list[NodeStrike]
) -> None:
    """A master tells its strikes with each new stream, and two operators may have merged before."""
    both = merge(first, second, NOW)
    assert merge(second, first, NOW) == both
    assert merge(both, [*second, *first, *second], NOW) == both
    assert from_data(to_data(both)) == both


def test_a_strike_that_its_job_takes_back_counts_no_more() -> None:
    """Others stay; whether it is told before or behind the strike itself makes no difference."""
    slow, other = strike(cause=StrikeCause.STRAGGLER), strike(at=NOW - 5)
    back = dataclasses.replace(slow, withdrawn=True)
    assert merge([slow, other], [back], NOW) == (other,)
    assert merge([], [back, slow, other], NOW) == (other,)
    told = NodeStruck(host="a", cause="Straggler", unix_time=NOW, withdrawn=True)
    assert [one.withdrawn for one in of_job([told], "team/t", "u-1")] == [True]


def test_a_strike_that_counts_no_more_is_forgotten() -> None:
    """The history does not grow with the age of the cluster."""
    old = strike(at=NOW - 6 * HALF_LIFE_SECONDS)
    assert merge([old], [strike("b")], NOW) == (strike("b"),)
    assert merge([strike()], [], NOW + 6 * HALF_LIFE_SECONDS) == ()


def test_a_strike_from_a_clock_that_is_far_ahead_is_not_believed() -> None:
    """It would count in full for as long as its clock was ahead."""
    near, far = strike(at=NOW + 60.0), strike(at=NOW + AHEAD_SECONDS + 1)
    assert merge([], [near, far], NOW) == (near,)
    assert merge([], [strike(at=float("nan")), strike(at=float("inf"))], NOW) == ()


def test_the_newest_strikes_are_kept() -> None:
    """A switch that fails strikes every node of a large job."""
    many = [strike(f"n{number}", NOW - number) for number in range(KEPT + 50)]
    kept = merge(many, (), NOW)
    assert len(kept) == KEPT
    assert kept[0] == many[KEPT - 1]
    assert kept[-1] == many[0]


def test_a_configmap_never_gets_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server would refuse it, and with it every strike; the oldest stay out."""
    monkeypatch.setattr(strikes, "MOST_BYTES", 2_000)
    many = tuple(strike(f"node-{number}", NOW + number, text="ß" * 160) for number in range(20))
    data = to_data(many)
    assert sum(len(text.encode()) for text in data.values()) <= 2_010
    kept = from_data(data)
    assert 1 < len(kept) < 20
    assert kept == many[-len(kept) :]


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({}, "data.format is None and not '1'"),
        ({"format": "2", "strikes": "[]"}, "data.format is '2'"),
        ({"format": FORMAT}, "data.strikes cannot be read"),
        ({"format": FORMAT, "strikes": "{"}, "data.strikes cannot be read"),
        ({"format": FORMAT, "strikes": "[1]"}, "data.strikes cannot be read"),
        ({"format": FORMAT, "strikes": '[{"node": "a"}]'}, "data.strikes cannot be read: KeyErr"),
        ({"format": FORMAT, "strikes": "7"}, "data.strikes cannot be read"),
    ],
)
def test_data_that_cannot_be_read_is_named(data: dict[str, str], named: str) -> None:
    """A person finds the field that is damaged."""
    with pytest.raises(DamagedHistoryError, match="data") as found:
        from_data(data)
    assert named in str(found.value)


def test_causes_of_a_newer_release_are_left_out() -> None:
    """In a report and in the ConfigMap; the other strikes count."""
    told = [NodeStruck(host="a", cause="Sunspots", unix_time=NOW, text="x")]
    told += [NodeStruck(host="", cause="Hang"), NodeStruck(host="b", cause="Hang", unix_time=NOW)]
    assert [one.host for one in of_job(told, "team/t", "u-1")] == ["b"]
    data = to_data([strike(), strike("b")])
    data["strikes"] = data["strikes"].replace("Failure", "Sunspots", 1)
    assert [one.host for one in from_data(data)] == ["b"]


def test_a_strike_is_told_with_its_job() -> None:
    """And with a text that is bounded: the job's own journal has more."""
    told = NodeStruck(host="a", cause="Hang", unix_time=NOW, node_rank=3, text="x" * 1_000)
    (kept,) = of_job([told], "team/t", "u-1")
    assert kept.as_message() == dataclasses.replace(told, job="team/t", text="x" * 160)


def struck(
    host: str, job: str, cause: StrikeCause = StrikeCause.STRAGGLER, age: float = 0.0
) -> NodeStrike:
    """A strike of a job."""
    return strike(host, NOW - age, cause=cause, job=f"team/{job}", job_uid=f"u-{job}")


def hosts(
    strikes: list[NodeStrike], percent: float = 10.0, nodes: frozenset[str] = NODES
) -> list[str]:
    """Names of the excluded nodes, the worst first."""
    return [one.host for one in exclude(strikes, nodes, percent, NOW)]


def test_one_job_alone_excludes_no_node() -> None:
    """However often its script crashes, and wherever."""
    crashes = [struck(host, "a", StrikeCause.FAILURE) for host in NODES for _ in range(50)]
    assert hosts(crashes) == []
    assert points(crashes[:50], NOW) == 1.0


def test_two_jobs_with_trouble_on_a_node_exclude_it() -> None:
    """The reason says which, and with what; it stays the same while points decay."""
    known = [
        struck("n1", "a"),
        struck("n1", "b", StrikeCause.HANG),
        struck("n1", "b", StrikeCause.FAILURE),
        struck("n2", "a"),
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
        dataclasses.replace(struck("n1", "x", cause), job=NODE_SOURCE, job_uid=NODE_SOURCE)
        for cause in (StrikeCause.CONDITION, StrikeCause.CONDITION, StrikeCause.CORDON)
    ]
    assert hosts(shown) == []
    (one,) = exclude([*shown, struck("n1", "a")], NODES, 10.0, NOW)
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
        dataclasses.replace(struck("n1", f"{team}-{number}", cause), job=f"{team}/{number}")
        for number, team in enumerate(teams)
        for cause in (StrikeCause.FAILURE, StrikeCause.HANG)
    ]
    known += [struck("n1", f"slow-{number}", cause) for number, cause in enumerate(others)]
    assert (hosts(known) == ["n1"]) is bad


def test_an_exclusion_ends_when_its_points_have_decayed() -> None:
    """Nobody has to take it back."""
    known = [struck("n1", "a"), struck("n1", "b")]
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
    known = [struck(name, job) for name in names for job in "ab"]
    known += [struck(names[-1], "c")]
    found = hosts(known, percent, frozenset(names))
    assert len(found) == most
    if most:
        assert found[0] == names[-1]
        assert found[1:] == names[: most - 1]


def test_a_node_that_is_gone_takes_no_room() -> None:
    """Its strikes stay, for a node that is made anew under its name."""
    known = [struck(name, job) for name in ("gone", "n1") for job in "abc"[: 2 + (name == "gone")]]
    assert hosts(known, percent=5.0) == ["n1"]


def test_a_job_keeps_as_many_nodes_as_it_has_workers() -> None:
    """In a small cluster it would wait for hours otherwise."""
    known = [struck(name, job) for name in ("n1", "n2") for job in "ab"]
    found = exclude(known, NODES, 10.0, NOW)
    assert [one.host for one in with_room(found, len(NODES), 18)] == ["n1", "n2"]
    assert [one.host for one in with_room(found, len(NODES), 19)] == ["n1"]
    assert with_room(found, len(NODES), 20) == with_room(found, len(NODES), 99) == ()


STRUCK = st.builds(
    struck,
    host=st.sampled_from([*sorted(NODES)[:4], "gone"]),
    job=st.sampled_from("abc"),
    cause=st.sampled_from(StrikeCause),
    age=st.floats(0.0, 86_400.0),
)


@given(st.lists(STRUCK), st.floats(0.0, 100.0), st.randoms())
def test_the_bounds_hold_in_any_order(
    known: list[NodeStrike], percent: float, luck: object
) -> None:
    """Two jobs at least, the threshold, the cap; and the order of strikes is no matter."""
    found = exclude(known, NODES, percent, NOW)
    assert len(found) <= max(1, len(NODES) * percent / 100)
    assert list(found) == sorted(found, key=lambda one: (-one.points, one.host))
    for one in found:
        assert one.points >= SUSPECT_FROM
        assert len({known_.job for known_ in known if known_.host == one.host}) > 1
    luck.shuffle(known)  # type: ignore[attr-defined]
    again = exclude(known, NODES, percent, NOW)
    assert [(one.host, one.reason) for one in again] == [(one.host, one.reason) for one in found]
