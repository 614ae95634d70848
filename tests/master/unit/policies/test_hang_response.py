"""Responses to hangs: ranks, agents or nodes, and the bound where nobody is to blame."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from holdfast_master.policies.hang_response import (
    AnsweredHang,
    HangAction,
    HangKind,
    HangVerdict,
    OddRank,
    Remedy,
    decide,
    following_seconds,
    remedy_of,
)

NODES = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}
"""Two ranks on each of three nodes."""


def verdict(odd: Mapping[int, HangKind], remedy: Remedy | None = None) -> HangVerdict:
    """A verdict that names these ranks; of several kinds the first in the order of kinds counts."""
    order = list(HangKind)
    kind = min(odd.values(), key=order.index, default=HangKind.NETWORK)
    return HangVerdict(
        kind=kind,
        ranks=tuple(OddRank(rank=rank, kind=odd[rank], reason="stands") for rank in sorted(odd)),
        reason=kind.value,
        remedy=remedy or remedy_of(kind),
    )


CASES: list[tuple[dict[int, HangKind], HangAction, tuple[int, ...]]] = [
    ({3: HangKind.ABSENT}, HangAction.RESTART_ROUND, ()),
    ({3: HangKind.NATIVE_GIL, 4: HangKind.LOCK}, HangAction.RESTART_ROUND, ()),
    ({2: HangKind.STOPPED}, HangAction.RESTART_ROUND, ()),
    ({2: HangKind.COMPILATION}, HangAction.RESTART_ROUND, ()),
    ({5: HangKind.PROCESS_GONE}, HangAction.REPLACE_AGENTS, (2,)),
    ({3: HangKind.UNINTERRUPTIBLE}, HangAction.LEAVE_NODES, (1,)),
    # one that is only stopped can be ended: its node stays
    ({0: HangKind.STOPPED, 3: HangKind.UNINTERRUPTIBLE}, HangAction.LEAVE_NODES, (1,)),
    ({1: HangKind.STORAGE, 4: HangKind.STORAGE}, HangAction.LEAVE_NODES, (0, 2)),
    # a new node would meet the same
    (dict.fromkeys((1, 2, 4), HangKind.UNINTERRUPTIBLE), HangAction.NOTHING, ()),
]


@pytest.mark.parametrize(("odd", "action", "nodes"), CASES)
def test_the_smallest_thing_that_helps_is_done(
    odd: dict[int, HangKind], action: HangAction, nodes: tuple[int, ...]
) -> None:
    """Only nodes that cannot stay leave, and never all of them."""
    for tried in (False, True):
        found = decide(verdict(odd), NODES, tried=tried)
        assert (found.action, found.nodes) == (action, nodes)
        assert found.reason


@pytest.mark.parametrize(
    ("odd", "action"),
    [
        (dict.fromkeys((0, 1, 3), HangKind.UNINTERRUPTIBLE), HangAction.WAIT),
        ({1: HangKind.STORAGE, 2: HangKind.DATA_LOADER}, HangAction.WAIT),
        # nothing but the node itself is to blame
        (dict.fromkeys((0, 1), HangKind.DATA_LOADER), HangAction.RESTART_ROUND),
        ({1: HangKind.STORAGE, 2: HangKind.LOCK}, HangAction.LEAVE_NODES),
        (dict.fromkeys(range(6), HangKind.UNINTERRUPTIBLE), HangAction.NOTHING),
    ],
)
def test_what_half_of_the_nodes_wait_for_may_come(
    odd: dict[int, HangKind], action: HangAction
) -> None:
    """They share it, and a restart would wait for it again: at first nothing is done."""
    found = verdict(odd)
    assert decide(found, NODES, tried=False, excused_seconds=1.0).action is action
    assert decide(found, NODES, tried=False).action is not HangAction.WAIT
    many = {rank: rank for rank in range(14)}  # fewer than half have it by themselves
    alone = decide(found, many, tried=False, excused_seconds=1.0).action
    assert alone is not HangAction.WAIT


@pytest.mark.parametrize(
    ("before", "now", "seconds"),
    [
        (dict.fromkeys(range(6), HangKind.DATA_LOADER), {0: HangKind.DATA_LOADER}, 200.0),
        ({0: HangKind.STORAGE, 1: HangKind.DATA_LOADER}, {0: HangKind.DATA_LOADER}, 200.0),
        ({0: HangKind.DATA_LOADER, 1: HangKind.DATA_LOADER}, {0: HangKind.LOCK}, 0.0),
        ({0: HangKind.LOCK}, {0: HangKind.LOCK}, 0.0),
        ({0: HangKind.LOCK}, {1: HangKind.LOCK}, 0.0),
        ({0: HangKind.LOCK}, {}, 0.0),
    ],
)
def test_ranks_may_follow_those_that_did_the_same(
    before: dict[int, HangKind], now: dict[int, HangKind], seconds: float
) -> None:
    """Twice as long, where others went on since an earlier look."""
    assert following_seconds(verdict(now), verdict(before), 100.0) == seconds


def test_the_only_node_of_a_job_is_left_as_well() -> None:
    """Another one may do better."""
    found = decide(verdict({0: HangKind.UNINTERRUPTIBLE}), {0: 0}, tried=False)
    assert (found.action, found.nodes) == (HangAction.LEAVE_NODES, (0,))


def test_storage_that_all_wait_for_is_left_alone() -> None:
    """The verdict says that nothing helps."""
    odd = dict.fromkeys(NODES, HangKind.STORAGE)
    assert decide(verdict(odd, Remedy.NOTHING), NODES, tried=False).action is HangAction.NOTHING


@pytest.mark.parametrize("remedy", [Remedy.NOTHING, Remedy.RESTART_RANK])
def test_a_hang_of_nobody_is_answered_by_one_restart(remedy: Remedy) -> None:
    """The network, or missing evidence: the second time people have to look."""
    found = [decide(verdict({}, remedy), NODES, tried=tried).action for tried in (False, True)]
    assert found == [HangAction.RESTART_ROUND, HangAction.NOTHING]


def test_a_node_does_not_leave_for_what_follows_its_rank() -> None:
    """The next node's rank 0 waited for the same storage."""
    found = verdict({0: HangKind.STORAGE})
    past = AnsweredHang(
        kind=HangKind.STORAGE,
        ranks=(0,),
        hosts=("gpu-1",),
        began=100.0,
        round=1,
        reached=0,
        cost_seconds=5.0,
    )
    assert decide(found, NODES, tried=False).action is HangAction.LEAVE_NODES
    same = decide(found, NODES, tried=False, past=[past], hosts={0: "gpu-1"})
    assert same.action is HangAction.LEAVE_NODES
    again = decide(found, NODES, tried=False, past=[past], hosts={0: "gpu-2"})
    assert again.action is HangAction.NOTHING, "its successor has the same number"
    assert "on another node" in again.reason
    early = decide(found, NODES, tried=False, past=[past], waited_seconds=4.0)
    assert early.action is HangAction.WAIT


def test_a_finished_script_is_not_run_again() -> None:
    """Whatever the others do."""
    for odd in ({}, {0: HangKind.ABSENT}, {0: HangKind.STOPPED}):
        found = dataclasses.replace(verdict(odd), ended=(5,))
        assert decide(found, NODES, tried=False).action is HangAction.NOTHING
