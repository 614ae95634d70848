"""Suspicion: which checked nodes are checked again, and why."""

from __future__ import annotations

import pytest

from holdfast_master.policies import node_history
from holdfast_master.policies.node_history import Strike
from holdfast_master.policies.preflight import why_again
from holdfast_wire.strikes import StrikeCause

NOW = 1000.0


def again(*strikes: tuple[int, StrikeCause, float], rank: int = 1, judged_at: float = 100.0) -> str:
    """The reason for a node on a host with these strikes: node, cause, time."""
    own = [Strike("h", cause, at, node_rank=node) for node, cause, at in strikes]
    return why_again(rank, judged_at, own, node_history.judge(own, NOW).get("h"))


@pytest.mark.parametrize("cause", [StrikeCause.STRAGGLER, StrikeCause.HANG])
def test_what_was_laid_to_the_node_since_its_check_is_enough(cause: StrikeCause) -> None:
    """Once, and only after the verdict."""
    assert again((1, cause, 101.0)) == f"{cause.value.lower()} since its last check"
    assert not again((1, cause, 100.0))


def test_what_was_laid_to_another_node_of_the_host_is_not() -> None:
    """Unless it makes the host suspect."""
    one = (2, StrikeCause.STRAGGLER, 500.0)
    assert not again(one)
    assert not again(one, (3, StrikeCause.HANG, 999.0))
    assert again(one, (3, StrikeCause.STRAGGLER, 999.0)).startswith("its host is suspect (")


def test_crashes_count_only_as_points_of_the_host() -> None:
    """Three of them are below the limit after a moment, four are not."""
    crash = (1, StrikeCause.FAILURE, 900.0)
    assert not again(*[crash] * 2)
    assert again(*[crash] * 4).startswith("its host is suspect (1.99 points of 1.5: Failure 4)")


def test_a_suspect_host_without_anything_new_is_not_checked_again() -> None:
    """The last check has seen what was before it."""
    old = [(1, StrikeCause.STRAGGLER, 50.0), (1, StrikeCause.PREFLIGHT, 100.0)]
    assert not again(*old)
    assert again(*old, (2, StrikeCause.FAILURE, 200.0))
