"""Replicas of shards under FSDP2 train as whole replicas do that follow the formula."""

from __future__ import annotations

from typing import Any, Final

import pytest

from checkpoints.flash_world import Worlds
from house.extended import usual
from house.sample import sampled
from local_sgd import fsdp2_training
from local_sgd.compared import NESTEROV, apart

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "local_sgd/process/test_fsdp2_rounds.py::test_either_dimension_may_be_of_any_size",
    ],
)
EVERY_2: Final = {"local_sgd_sync_interval": 2}
DETECTORS: Final = {"skip_anomaly": True, "ewma_warmup_steps": 4, "pseudo_gradnorm_reduce": True}
LINEAR: Final = {"reducer": "linear"}


class Training(Worlds):
    """Worlds that train, and the reference."""

    script = fsdp2_training.__file__

    def both(self, mesh: list[int], **world: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return what the ranks of a mesh found, and the reference with as many replicas."""
        world = {"steps": 9, "closing": True, **world, "mesh": mesh}
        (found,) = self.run(job="reference", world=1, kind="plain", **world)
        return self.run(job="train", world=mesh[0] * mesh[1], kind="fsdp", **world), found


def _compare(ranks: list[dict[str, Any]], reference: dict[str, Any], shards: int) -> None:
    """All ranks have their replica's weights, to the bar of 1e-6."""
    for rank, found in enumerate(ranks):
        assert apart(found["weights"], reference["weights"][rank // shards]) <= 1e-6


CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "averaging": {"config": {"local_sgd_sync_interval": 3}},
    "warm-up, Nesterov": {
        "config": {**EVERY_2, "local_sgd_warmup_steps": 3},
        "outer": NESTEROV,
    },
    "weights, clipping, detectors": {
        "config": {
            **EVERY_2,
            **DETECTORS,
            "weight_softmax_temperature": 0.05,
            "clip_pseudo_grad": 0.1,
        },
        "outer": NESTEROV,
        "gta": LINEAR,
    },
}


@pytest.mark.parametrize("name", usual(CONFIGS, *list(CONFIGS)[1:], more=MORE))
def test_two_replicas_of_two_shards_train_as_whole_ones(training: Training, name: str) -> None:
    """Two by two ranks and the unsharded reference differ by at most 1e-6 after several rounds."""
    ranks, found = training.both([2, 2], **CONFIGS[name])
    _compare(ranks, found, 2)
    assert sum(bool(one) for one in ranks[0]["outcomes"]) >= 2


@pytest.mark.parametrize(
    "mesh", usual([[1, 1], [1, 2], [2, 1], [3, 1]], [3, 1], more=MORE), ids=str
)
def test_either_dimension_may_be_of_any_size(training: Training, mesh: list[int]) -> None:
    """One replica, pure replicas of one shard, and a single rank train as the reference does."""
    ranks, found = training.both(mesh, **CONFIGS["warm-up, Nesterov"])
    _compare(ranks, found, mesh[1])


OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "tied, and computed again": {"tied": True, "recompute": True},
    "frozen, and a block that is not used": {"frozen": True, "unused": True},
    "units in units, that prefetch each other": {"nested": True, "prefetch": True},
    "two blocks in one unit, that stay whole": {"grouped": True, "whole": True, "evaluate": True},
    "in eval mode, with torch's helper of checkpoints": {"eval": True, "helped": True},
    "gathered early, and computed again without a graph": {"early": True, "recompute": "reentrant"},
}


@pytest.mark.parametrize("name", sampled(list(OPTIONS), 3))
def test_every_form_of_a_model_synchronises_once_in_a_round(training: Training, name: str) -> None:
    """Prefetches, evaluations, recomputation and later micro-batches change nothing of a round."""
    options = OPTIONS[name]
    inner = "sgd" if options.get("helped") else "adamw"  # the helper's step counts in AdamW's own
    ranks, found = training.both(
        [2, 2], config=EVERY_2, outer=NESTEROV, options=options, inner=inner, micros=2
    )
    _compare(ranks, found, 2)
    rounds = [one for one in ranks[0]["outcomes"] if one]
    assert len(rounds) == 4
    assert {one["rounds"] for one in ranks} == {5}, "the closing one counts"
    for number, units in enumerate(rounds, 1):
        assert [unit[1] for unit in units] == [number] * len(rounds[0])


def test_a_root_that_an_evaluation_left_in_eval_mode_has_rounds(training: Training) -> None:
    """Before the step that begins a round: none is left out or late."""
    ranks = training.run(
        job="train", world=2, kind="fsdp", mesh=[2, 1], steps=9, config=EVERY_2, outer=NESTEROV,
        options={"forgets": 2}, closing=True,
    )  # fmt: skip
    made = [bool(one) for one in ranks[0]["outcomes"]]
    assert made == [False, False, *[True, False] * 3, True]
    assert ranks[0]["weights"] == ranks[1]["weights"]


def test_a_replica_that_went_astray_is_left_out(training: Training) -> None:
    """Its long step is flagged in each unit, weighs nothing, and the others' weights hold."""
    world = {
        "config": {"local_sgd_sync_interval": 1, **DETECTORS},
        "outer": NESTEROV,
        "gta": LINEAR,
        "steps": 11,
        "disturbed": [[8, 1, 30.0]],
    }
    ranks, found = training.both([2, 2], **world)
    _compare(ranks, found, 2)
    flagged = [unit for unit in ranks[0]["outcomes"][9] if unit[2] == [1.0, 0.0]]
    assert len(flagged) == 4
    assert sorted({unit for unit, _ in found["flagged"]}) == sorted(one[0] for one in flagged)


def test_atorch_bug_1_each_spike_is_caught_not_the_first_alone(training: Training) -> None:
    """The detector learns the norm itself, not one with 1e6 added to it."""
    spikes = [8, 10, 12, 14, 16]
    ranks, _ = training.both(
        [2, 2],
        config={"local_sgd_sync_interval": 1, **DETECTORS},
        gta=LINEAR,
        steps=18,
        disturbed=[[step, 1, 30.0] for step in spikes],
    )
    caught = [
        step for step in spikes if all(unit[2][1] == 0 for unit in ranks[0]["outcomes"][step + 1])
    ]
    assert caught == spikes


def test_atorch_bug_6_a_replica_of_nan_leaves_the_others_finite(training: Training) -> None:
    """Its delta is overwritten, not multiplied by zero, and its norm is never learned."""
    ranks, found = training.both(
        [2, 2],
        config={"local_sgd_sync_interval": 2, **DETECTORS},
        outer=NESTEROV,
        gta=LINEAR,
        disturbed=[[3, 1, "nan"]],
    )
    _compare(ranks, found, 2)
    assert all(unit[2] == [1.0, 0.0] for unit in ranks[0]["outcomes"][4])


def test_atorch_bug_7_a_replica_s_gradients_are_not_divided_by_the_replicas(
    training: Training,
) -> None:
    """SGD, whose steps are as long as its gradients, goes as far as on a whole replica."""
    ranks, found = training.both([2, 2], config=EVERY_2, inner="sgd", steps=5)
    _compare(ranks, found, 2)


def test_atorch_bug_9_all_ranks_agree_that_all_went_astray(training: Training) -> None:
    """Flags that all have decide, not a rank's own shard: each rank returns to the anchors."""
    ranks, found = training.both(
        [2, 2],
        config={"local_sgd_sync_interval": 1, **DETECTORS},
        outer=NESTEROV,
        gta=LINEAR,
        steps=11,
        disturbed=[[8, "all", 30.0]],
    )
    _compare(ranks, found, 2)
    assert len(found["rollbacks"]) == 4
    assert len({str(rank["outcomes"][9]) for rank in ranks}) == 1


def test_atorch_bug_13_adapters_on_a_frozen_model_train(training: Training) -> None:
    """A root without a trained parameter is no unit, and its forward begins the rounds."""
    ranks, found = training.both([2, 2], config=EVERY_2, options={"adapters": True})
    _compare(ranks, found, 2)
    assert {unit[0] for unit in ranks[0]["outcomes"][2]} == {f"blocks.{n}" for n in range(3)}


def test_survivors_of_a_killed_replica_lose_no_step(training: Training) -> None:
    """They make a group of their own and repeat the forward that failed, in the same processes."""
    world: dict[str, Any] = {"config": EVERY_2, "outer": NESTEROV, "steps": 6}
    killed = training.run(job="survive", world=3, mesh=[3, 1], kind="fsdp", killed_at=2, **world)
    plain = training.run(job="train", world=2, mesh=[2, 1], kind="fsdp", **world)
    assert killed[2] == {}
    for survivor, alike in zip(killed[:2], plain, strict=True):
        assert survivor["steps"] == 6
        assert len(survivor["errors"]) == 1
        assert survivor["weights"] == alike["weights"]


def test_a_replica_that_gives_up_tells_those_who_wait(training: Training) -> None:
    """A mesh keeps its groups for good; the rounds have one of their own, which ends at once."""
    world = {"config": {}, "outer": NESTEROV, "timeout": 60.0}
    _, waits, _ = training.run(job="given up", world=3, mesh=[3, 1], kind="fsdp", **world)
    assert "failed (deadline 60 s)" in waits["said"]
    assert waits["took"] < 30, "the deadline told it"


def test_what_does_not_fit_is_refused_with_a_remedy(training: Training) -> None:
    """A mesh of another form, a parameter that nobody would synchronise, and one thawed later."""
    (said, _) = training.run(job="refused", world=2, mesh=[1, 2], kind="fsdp")
    assert "call fully_shard with the shard dimension alone" in said["hybrid mesh"]
    assert "it has 1 dimensions, expected two" in said["one dimension"]
    assert "1.weight" in said["left out"]
    assert "no LocalSGD was made for this Sequential" in said["no LocalSGD"]
    assert "call detach() on it before another is made" in said["second"]
    assert "is trained now and was not when LocalSGD was made" in said["thawed"]


def test_fixed_members_train_as_a_mesh_does(training: Training) -> None:
    """A script that takes its members from the environment needs no other code under torchrun."""
    world = {
        "mesh": [2, 2],
        "world": 4,
        "kind": "fsdp",
        "job": "train",
        "steps": 9,
        "closing": True,
    }
    world |= {"config": EVERY_2, "outer": NESTEROV}
    by_mesh, by_members = training.run(**world), training.run(**world, members=True)
    assert [rank["weights"] for rank in by_members] == [rank["weights"] for rank in by_mesh]
