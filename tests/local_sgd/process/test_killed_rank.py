"""A rank that is killed in a reduction: the others' units are as before, and go on without it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from house.extended import usual
from local_sgd.replica_world import ReplicaWorlds

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "local_sgd/process/test_killed_rank.py::test_survivors_of_a_killed_rank_keep_their_units",
    ],
)


@pytest.mark.parametrize("codec", usual(["none", "int8"], "int8", more=MORE))
@pytest.mark.parametrize("phase", ["in the reduction", "before the reduction"])
def test_survivors_of_a_killed_rank_keep_their_units(
    worlds: ReplicaWorlds, codec: str, phase: str
) -> None:
    """SIGKILL of one of three: an error with its cause, all state bitwise as before the round.

    The survivors then make the round in a group of two. Where one of them had all chunks before
    the death, it is a round ahead, and both are told.
    """
    seed = random.randrange(10_000)
    draw = random.Random(seed)
    after = draw.uniform(0.001, 0.004) if phase == "in the reduction" else -1
    answers = worlds.train(
        job="killed",
        replicas=3,
        sizes=[1_000_000, 5],
        codec=codec,
        feedback=codec != "none",
        outer={"lr": 0.7, "momentum": 0.8, "nesterov": True},
        dies=(dies := draw.randrange(3)),
        after=after,
        timeout=20.0,
        may_fail=True,
    )
    survivors = [answer for rank, answer in enumerate(answers) if rank != dies]
    for answer in survivors:
        assert "error" not in answer, f"seed {seed}: {answer['error']}"
        assert answer["kept"], f"seed {seed}: a detector was lost"
        assert phase == "in the reduction" or answer["failed"], f"seed {seed}"
        if answer["failed"]:
            _check_unchanged(answer, f"seed {seed}")
    failed = sum(bool(answer["failed"]) for answer in survivors)
    for answer in survivors:
        if failed == 1:  # one had all it needed before the death: the two are a round apart
            assert "RoundsDifferError: unit unit 0" in answer["mixed"], f"seed {seed}"
        else:
            assert answer["again"] == ([2, 2] if failed else [3, 3]), f"seed {seed}"
            assert answer["after"] == survivors[0]["after"], f"seed {seed}"


def test_a_replica_that_gives_up_tells_the_others(worlds: ReplicaWorlds) -> None:
    """One that has failed closes its group: those that wait for it fail then, not at 60 s."""
    first, closed, third = worlds.train(job="closed", replicas=3, timeout=60.0)
    for answer in (first, third):
        assert "failed (deadline 60 s)" in answer["said"]
        assert answer["took"] < 30
    assert "this group has failed before (it was closed)" in closed["said"]


def _check_unchanged(answer: dict[str, Any], seed: str) -> None:
    assert "units are unchanged" in answer["failed"], seed
    assert answer["cause"] in {"RuntimeError", "DistBackendError", "SyncError"}, seed
    assert answer["took"] < 10, f"{seed}: the deadline of 20 s told them, not the death"
    assert answer["same"], f"{seed}: a unit changed"
