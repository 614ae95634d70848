"""Scripts that are over on some ranks: which of them is finished, and never run again."""

from __future__ import annotations

import pytest

from holdfast_master.policies.hang import classify
from holdfast_master.policies.hang_response import HangAction, HangKind, Remedy, decide
from holdfast_wire.messages import RankEvidence
from messages.hang_evidence import BACKWARD, LIB, OVER, SAVES, TORCH, USER, rank, stack

LEAVES = stack((f"{TORCH}/distributed/distributed_c10d.py", "destroy_process_group"))


def test_ranks_that_ended_well_are_not_silent() -> None:
    """The one that lives on is named with its thread, and nothing is run again."""
    lives = OVER.replace(f"{LIB}/threading.py", "/job/early.py", 1).replace(" in run", " in load")
    verdict = classify([rank(1, 9, stack=lives)], world_size=3, ended=(0, 2))
    assert (verdict.kind, [one.rank for one in verdict.ranks]) == (HangKind.OVER, [1])
    assert "with a thread at /job/early.py:982 in load" in verdict.reason
    assert (verdict.silent, verdict.ended) == ((), (0, 2))
    assert verdict.remedy is Remedy.NOTHING


def test_a_rank_that_ended_while_the_others_wait_is_odd() -> None:
    """It left a collective to them."""
    verdict = classify([rank(0, 9), rank(2, 9)], world_size=3, ended=(1,))
    assert (verdict.kind, [one.rank for one in verdict.ranks]) == (HangKind.ABSENT, [1])
    assert verdict.remedy is Remedy.NOTHING


def _answer(*ranks: RankEvidence) -> tuple[HangKind, HangAction]:
    verdict = classify(ranks, world_size=len(ranks))
    nodes = dict(enumerate(range(len(ranks))))
    return verdict.kind, decide(verdict, nodes, tried=False).action


@pytest.mark.parametrize("waits", [{}, {"stack": BACKWARD}])
def test_a_rank_that_crashed_beside_a_live_thread_has_no_good_end(waits: dict[str, str]) -> None:
    """The others wait for it in a collective: the script is not finished."""
    crashed = [rank(0, 9, **waits), rank(1, 8, stack=OVER), rank(2, 9, **waits)]
    assert _answer(*crashed) == (HangKind.OVER, HangAction.RESTART_ROUND)
    assert "an exception may have ended its script" in classify(crashed, world_size=3).reason


@pytest.mark.parametrize("other", [LEAVES, USER, OVER])
def test_a_script_that_nobody_waits_for_is_finished(other: str) -> None:
    """The other ranks end, too, or do something of their own."""
    over = rank(1, 9, stack=OVER)
    assert _answer(rank(0, 9, stack=other), over)[1] is HangAction.NOTHING
    assert classify([rank(0, 9, stack=other), over], world_size=2).remedy is Remedy.NOTHING


def test_a_finished_script_is_not_run_again_for_the_last_save_of_another_rank() -> None:
    """The worst cause names the hang; that one rank is through counts all the same."""
    saves = rank(0, 9, stack=SAVES, kernel_function="nfs_wait")
    assert _answer(saves, rank(1, 9, stack=OVER)) == (HangKind.STORAGE, HangAction.NOTHING)
    waits = rank(2, 10)
    found = _answer(saves, rank(1, 9, stack=OVER), waits)
    assert found == (HangKind.STORAGE, HangAction.LEAVE_NODES)
