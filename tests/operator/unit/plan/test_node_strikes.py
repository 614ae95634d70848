"""Strikes of all jobs: merged once each, forgotten in time, bounded, read back as written."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_operator.plan import node_strikes
from holdfast_operator.plan.node_strikes import (
    AHEAD_SECONDS,
    FORMAT,
    KEPT,
    DamagedHistoryError,
    NodeStrike,
    from_data,
    merge,
    of_job,
    to_data,
)
from holdfast_wire.messages import NodeStruck
from holdfast_wire.strikes import HALF_LIFE_SECONDS, StrikeCause

NOW = 1_700_000_000.0


def strike(host: str = "a", at: float = NOW, **fields: object) -> NodeStrike:
    """A strike of one job."""
    made = NodeStrike(
        host=host,
        cause=StrikeCause.FAILURE,
        at=at,
        job="team/t",
        job_uid="u-1",
        node_rank=0,
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
    monkeypatch.setattr(node_strikes, "MOST_BYTES", 2_000)
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
    assert kept.told() == dataclasses.replace(told, job="team/t", text="x" * 160)
