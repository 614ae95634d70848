"""A-EDiT under FSDP2: rounds by time, replicas of unlike speed, and an end that loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpoints.flash_world import Worlds
from local_sgd import fsdp2_training

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
SECONDS = 0.8
"""τ of these tests."""


class Training(Worlds):
    """Worlds that train by A-EDiT."""

    script = fsdp2_training.__file__

    def run_by_time(self, **world: Any) -> list[dict[str, Any]]:
        """Return what each rank of two replicas of two shards tells."""
        config = {
            "use_async": True,
            "local_sgd_sync_time": SECONDS,
            "min_total_global_steps": world.pop("least", 1),
            "use_step_weight": True,
        }
        return self.run(
            job="by time",
            world=4,
            mesh=[2, 2],
            kind="fsdp",
            config=config,
            seconds=[0.01, 0.4],
            **world,
        )


def test_a_fast_replica_weighs_more_and_none_waits_for_the_slow_one_s_steps(
    training: Training,
) -> None:
    """All enter each round together, all ranks decide alike, and the last one leaves all equal."""
    ranks = training.run_by_time(steps=[60, 6])
    assert ranks[0]["parted"] != ranks[2]["parted"]
    assert len({str(rank["outcomes"]) for rank in ranks[:2]}) == 1
    assert len({rank["end"]["weights"] for rank in ranks}) == 1
    weights = [one[1] for one in ranks[2]["outcomes"]]
    assert len(weights) >= 2
    assert sum(fast for fast, _ in weights[:-1]) > sum(slow for _, slow in weights[:-1])


def test_too_few_steps_of_all_make_no_round_until_the_last(training: Training) -> None:
    """The time starts again; at the end of the data the last round is made all the same."""
    ranks = training.run_by_time(steps=[20, 5], least=10_000)
    assert [len(rank["outcomes"]) for rank in ranks] == [1] * 4
    assert [weights for _, weights in ranks[0]["outcomes"]] == [[20 / 25, 5 / 25]]
    assert len({rank["end"]["weights"] for rank in ranks}) == 1


def test_a_replica_without_data_takes_results_and_weighs_nothing(training: Training) -> None:
    """Its own last steps count once; then the others' rounds pass without it."""
    ranks = training.run_by_time(steps=[3, 8])
    takes_part = [one[1][0] > 0 for one in ranks[3]["outcomes"]]
    assert takes_part[0]
    assert not takes_part[-1]
    assert takes_part == sorted(takes_part, reverse=True)
    assert len({rank["end"]["weights"] for rank in ranks}) == 1


def test_replicas_save_together_where_they_have_entered_a_round(
    training: Training, tmp_path: Path
) -> None:
    """The checkpoint counts rounds; each replica goes on from its own state and step count."""
    saved = training.run_by_time(steps=[12, 4], root=str(tmp_path))
    again = training.run_by_time(steps=[1, 1], root=str(tmp_path))
    for before, after in zip(saved, again, strict=True):
        assert after["start"] == before["saved clock"]["rounds"] >= 1
        assert after["loaded"] == before["saved"]
        assert after["clock"] == before["saved clock"]
        assert after["clock"]["steps"] in (4, 12)
    assert again[0]["clock"]["due"]


def test_a_replica_without_data_ends_where_the_others_end(training: Training) -> None:
    """As by a stop of the job: the others call nothing any more, so nobody may wait for them."""
    ranks = training.run_by_time(steps=[5, 40], ends=3)
    assert [[number for number, _ in rank["outcomes"]] for rank in ranks] == [[1, 2]] * 4
