"""A rank that is killed in a reduction: the others' units are as before, and go on without it."""

from __future__ import annotations

import random

import pytest

from local_sgd.replica_world import ReplicaWorlds

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]


@pytest.mark.parametrize("codec", ["none", "int8"])
@pytest.mark.parametrize("phase", ["in the reduction", "before the reduction"])
def test_survivors_of_a_killed_rank_keep_their_units(
    worlds: ReplicaWorlds, codec: str, phase: str
) -> None:
    """SIGKILL of one of three: an error with its cause, all state bitwise as before the round.

    The survivors then make the round in a group of two.
    """
    seed = random.randrange(10_000)
    draw = random.Random(seed)
    after = draw.uniform(0.001, 0.004) if phase == "in the reduction" else -1
    answers = worlds.train(
        job="killed",
        replicas=3,
        sizes=[500_000, 5],
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
        assert "units are unchanged" in answer["failed"], f"seed {seed}"
        assert answer["cause"] in {"RuntimeError", "DistBackendError", "SyncError"}
        assert answer["took"] < 10, f"seed {seed}: the deadline of 20 s told them, not the death"
        assert answer["same"], f"seed {seed}: a unit changed"
        assert answer["again"] == [2, 2]
        assert answer["kept"], "a detector was lost"
    assert len({answer["after"] for answer in survivors}) == 1, f"seed {seed}"
