"""Rounds without a barrier under FSDP2: the late hold nobody, and their deltas count once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints.flash_world import Worlds
from local_sgd import quorum_world

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
CONFIG = {
    "use_async": True,
    "local_sgd_sync_time": 0.3,
    "min_total_global_steps": 1,
    "use_step_weight": True,
    "quorum": 0.5,
    "grace_max_seconds": 0.3,
}
EXACT = 5e-6
"""Greatest difference of a weight in fp32 after some 70 steps and 15 rounds; a delta that counts
twice, or not at all, is 1e-3 and more."""
OUTER = {"lr": 0.7, "momentum": 0.8, "nesterov": True}


class Training(Worlds):
    """Worlds that train without a barrier."""

    script = quorum_world.__file__

    def train(self, mesh: tuple[int, int], **world: Any) -> list[dict[str, Any]]:
        """Return what each rank tells."""
        config = {**CONFIG, **world.pop("config", {})}
        given = {"kind": "fsdp", "inner": "sgd", "outer": OUTER, "config": config, **world}
        return self.run(job="train", world=mesh[0] * mesh[1], mesh=list(mesh), **given)

    def difference(self, mesh: tuple[int, int], ranks: list[dict[str, Any]]) -> float:
        """Return the greatest difference of a weight from a replay of what the ranks noted."""
        notes = [one["rounds"] for one in ranks[:: mesh[1]]]
        given = {"kind": "plain", "inner": "sgd", "outer": OUTER, "config": CONFIG}
        [told] = self.run(job="replay", world=1, mesh=list(mesh), notes=notes, **given)
        mine = [_flat(one["weights"]) for one in ranks[:: mesh[1]]]
        pairs = zip(mine, map(_flat, told["weights"]), strict=True)
        return max(abs(a - b) for one in pairs for a, b in zip(*one, strict=True))


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    """One process with torch for all tests here."""
    with Training() as started:
        yield started


@pytest.fixture(scope="module")
def slow(training: Training) -> list[dict[str, Any]]:
    """Return four replicas, one 4 times slower than the others, which then hangs for a while."""
    seconds, pauses = [0.03, 0.03, 0.03, 0.12], [[3, 3, 2.0]]
    return training.train((4, 1), steps=[70, 70, 70, 9], seconds=seconds, pauses=pauses)


def test_a_replica_that_hangs_holds_nobody(slow: list[dict[str, Any]]) -> None:
    """Rounds close without it; it comes back several rounds late, and later all are equal."""
    first, late = slow[0]["rounds"], slow[3]["rounds"]
    without = [one["round"] for one in first if 3 not in one["replicas"]]
    assert len(without) >= 2
    assert all(one["round"] not in without for one in late)
    assert max(one["missed"] for one in late) >= 2
    assert len({str(sorted(one["weights"].items())) for one in slow}) == 1
    assert [one["detectors"] for one in slow] == [[0, 1, 2, 3]] * 4


def test_each_delta_counts_once_or_discounted(
    training: Training, slow: list[dict[str, Any]]
) -> None:
    """A replay of who was in which round, in one process by the formula, has the same weights."""
    assert training.difference((4, 1), slow) <= EXACT


def test_a_replica_that_is_steadily_slow_is_in_rounds_with_its_steps(
    slow: list[dict[str, Any]],
) -> None:
    """It calls the others early, so its deltas are not late: at least one before it hangs."""
    before = [one for one in slow[3]["rounds"] if one["step"] <= 3]
    assert before
    assert all(one["missed"] == 0 for one in before[:1])


def test_the_last_round_has_all_replicas(slow: list[dict[str, Any]]) -> None:
    """Who has no data joins the slow one's rounds without a weight, and ends with it."""
    for one in slow:
        assert one["rounds"][-1]["replicas"] == [0, 1, 2, 3]
        assert one["clock"]["rounds"] == one["rounds"][-1]["round"]


def test_the_shards_of_a_replica_decide_alike(training: Training) -> None:
    """Two by two ranks, one replica hangs: both its ranks note the same; the weights are exact."""
    ranks = training.train((2, 2), steps=[40, 12], seconds=[0.03, 0.03], pauses=[[1, 5, 1.5]])
    assert ranks[0]["rounds"] == ranks[1]["rounds"]
    assert ranks[2]["rounds"] == ranks[3]["rounds"]
    assert any(one["replicas"] == [0] for one in ranks[0]["rounds"])
    assert max(one["missed"] for one in ranks[2]["rounds"]) >= 1
    assert training.difference((2, 2), ranks) <= EXACT


def test_all_of_a_sync_works_among_some(training: Training) -> None:
    """Votes, a codec, detectors, clipping and Adam's state of the anchors, with a late replica."""
    config = {
        "codec": "int8",
        "skip_anomaly": True,
        "pseudo_gradnorm_reduce": True,
        "ewma_warmup_steps": 2,
        "clip_pseudo_grad": 1.0,
        "grace_max_seconds": 0.1,
    }
    ranks = training.train(
        (3, 1),
        steps=[30, 30, 8],
        seconds=[0.03] * 3,
        pauses=[[2, 3, 1.5]],
        config=config,
        gta={"reducer": "gta", "consensus_method": "sum"},
        outer={"lr": 0.01},
        **{"outer class": "Adam"},
    )
    assert any(2 not in one["replicas"] for one in ranks[0]["rounds"])
    assert max(one["missed"] for one in ranks[2]["rounds"]) >= 1
    assert len({str(one["end"]) for one in ranks}) == 1
    assert all(one["detectors"] == [0, 1, 2] for one in ranks)


def test_a_checkpoint_has_a_late_replica_too(training: Training, tmp_path: Path) -> None:
    """It is saved in a round that all are in, and resumes bit by bit."""
    world = {
        "config": {"whole_round_interval": 2, "grace_max_seconds": 0.8},
        "root": str(tmp_path),
        "seconds": [0.03, 0.03],
    }
    saved = training.train((2, 1), steps=[40, 12], pauses=[[1, 3, 2.5]], **world)
    last = [one["saves"][-1] for one in saved]
    assert last[0]["round"] == last[1]["round"]
    assert max(one["missed"] for one in saved[1]["rounds"]) >= 1
    again = training.train((2, 1), steps=[2, 2], **world)
    for before, after in zip(last, again, strict=True):
        assert after["start"] == before.pop("round") == after["loaded clock"]["rounds"]
        assert after["loaded"] == before
    assert again[0]["rounds"][0]["round"] == again[0]["start"] + 1


def test_a_dead_replica_is_waited_for_no_longer_than_the_window(training: Training) -> None:
    """Rounds go on without it; only the last one, which has all, tells that it is gone."""
    ranks = training.train(
        (4, 1), steps=[30] * 4, seconds=[0.03] * 4, killed=[3, 5], timeout=3.0, may_fail=True
    )
    for one in ranks[:3]:
        assert "not all have come to the end of their data: one is gone" in one["error at the end"]
        assert sum(3 not in noted["replicas"] for noted in one["rounds"]) >= 2


def test_a_replica_that_dies_in_its_round_fails_it_for_the_others(training: Training) -> None:
    """They get a SyncError from the optimizer's step, and their units are as they were."""
    ranks = training.train(
        (2, 1),
        steps=[60, 60],
        seconds=[0.03] * 2,
        dies_in_next_round=[1, 3],
        timeout=5.0,
        config={"quorum": 1.0},
        may_fail=True,
    )
    assert "the units are unchanged" in ranks[0]["error of step"]
    assert ranks[0]["before"] == ranks[0]["after"]


def test_what_cannot_be_done_without_a_barrier_is_refused(training: Training) -> None:
    """Rounds by steps, members, a group of those that are left; messages say what to change."""
    [said] = training.run(job="refused", world=1, mesh=[1, 1], kind="fsdp")
    assert said["by steps"] == (
        "quorum=0.5, use_async=False: rounds that end by steps wait for all replicas; set "
        "use_async=True, or leave quorum at None"
    )
    assert said["regroup"].startswith("quorum=0.5: replicas that were late do not learn of a loss")


def _flat(weights: Any) -> list[float]:
    if isinstance(weights, dict):
        weights = [weights[name] for name in sorted(weights)]
    if not isinstance(weights, list):
        return [weights]
    return list(itertools.chain.from_iterable(map(_flat, weights)))
