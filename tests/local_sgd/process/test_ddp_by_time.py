"""A-EDiT under DDP: rounds by time, replicas of unlike pace, and an end that loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from local_sgd.replica_world import ReplicaWorlds

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
SECONDS = 0.5
"""Time between rounds in these tests."""
SLOW = [0.005, 0.005, 0.2]
"""Seconds of a step of each replica."""


def run(worlds: ReplicaWorlds, steps_of: list[int], **world: Any) -> list[dict[str, Any]]:
    """Return what each of three replicas tells, of which the last is slow."""
    config = {
        "use_async": True,
        "local_sgd_sync_time": world.pop("seconds", SECONDS),
        "min_total_global_steps": world.pop("least", 1),
        "use_step_weight": True,
        "local_sgd_warmup_steps": world.pop("warmup", 0),
    }
    given = {"job": "by time", "kind": "gloo", "world": 3, "lr": 0.05, "config": config}
    return worlds.run(**given, paces=SLOW, steps_of=steps_of, **world)


def test_all_enter_a_round_together_and_weigh_by_their_steps(worlds: ReplicaWorlds) -> None:
    """After each round all are equal; nobody waits for as many steps as the fast ones make."""
    ranks = run(worlds, [150, 150, 6], warmup=3)
    told = [
        [(one["round"], one["weights"], one["equal"]) for one in rank["rounds"]] for rank in ranks
    ]
    assert told[0] == told[1] == told[2]
    assert len(told[0]) >= 2
    shares = [weights for _, weights, _ in told[0]]
    assert all(one > 0 for one in shares[0])
    assert sum(one[0] for one in shares) > sum(one[2] for one in shares)
    assert [rank["step"] for rank in ranks] == [150, 150, 6]
    assert len({rank["equal"] for rank in ranks}) == 1


def test_a_replica_without_data_joins_the_others_and_weighs_nothing(
    worlds: ReplicaWorlds,
) -> None:
    """Its last steps count once; then rounds pass without it until nobody has data."""
    ranks = run(worlds, [3, 3, 12])
    weights = [one["weights"] for one in ranks[2]["rounds"]]
    counts = [one[0] > 0 for one in weights]
    assert counts[0]
    assert counts == sorted(counts, reverse=True)
    assert len({rank["equal"] for rank in ranks}) == 1


def test_a_replica_without_data_ends_where_the_others_end(worlds: ReplicaWorlds) -> None:
    """As by a stop of the job: the others call nothing any more, so nobody may wait for them."""
    ranks = run(worlds, [3, 400, 40], ends=3)
    assert [[one["round"] for one in rank["rounds"]] for rank in ranks] == [[1, 2, 3]] * 3
    assert len({rank["equal"] for rank in ranks}) == 1
    assert ranks[2]["step"] < 40


def test_too_few_steps_of_all_make_no_round_until_the_last(worlds: ReplicaWorlds) -> None:
    """The last round is made however few the steps are: no delta is lost."""
    ranks = run(worlds, [40, 30, 5], least=10_000)
    for rank in ranks:
        (one,) = rank["rounds"]
        assert one["weights"] == pytest.approx([40 / 75, 30 / 75, 5 / 75])


def test_each_rank_resumes_with_its_own_steps_since_the_last_round(
    worlds: ReplicaWorlds, tmp_path: Path
) -> None:
    """Saved in the middle of a round: what was not yet in a round counts in the next."""
    path = str(tmp_path / "state")
    before = run(worlds, [9, 7, 2], seconds=60, save=path)
    assert [rank["alone"] for rank in before] == [9, 7, 2]
    after = run(worlds, [5, 5, 5], least=10_000, resume=path, own=True)
    assert [rank["begin"] for rank in after] == [9, 7, 2]
    for rank in after:
        (one,) = rank["rounds"]
        assert one["weights"] == pytest.approx([14 / 33, 12 / 33, 7 / 33])
    assert len({rank["equal"] for rank in after}) == 1
