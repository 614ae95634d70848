"""Replicas under FSDP1's HYBRID_SHARD train as whole replicas do that follow the formula."""

from __future__ import annotations

from typing import Any, Final

import pytest

from checkpoints.flash_world import Worlds
from local_sgd import fsdp1_training
from local_sgd.compared import NESTEROV, apart

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
WORLD: Final[dict[str, Any]] = {
    "steps": 9,
    "closing": True,
    "mesh": [2, 2],
    "config": {
        "local_sgd_sync_interval": 2,
        "local_sgd_warmup_steps": 3,
        "skip_anomaly": True,
        "ewma_warmup_steps": 4,
        "pseudo_gradnorm_reduce": True,
        "clip_pseudo_grad": 0.1,
    },
    "outer": NESTEROV,
    "gta": {"reducer": "linear"},
}


class Training(Worlds):
    """Worlds that train, and the reference."""

    script = fsdp1_training.__file__


@pytest.fixture(scope="module")
def expected(training: Training) -> dict[str, Any]:
    """The weights of whole replicas."""
    (found,) = training.run(job="reference", **{**WORLD, "world": 1, "kind": "plain"})
    return found


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"options": {"evaluate": True}},
        {"fsdp": {"use_orig_params": False}, "resumed": 6},
        {"inner": "sgd", "micros": 2},
    ],
    ids=["plain", "evaluation", "flat parameters, resumed", "SGD, micro-batches"],
)
def test_two_replicas_of_two_shards_train_as_whole_ones(
    training: Training, expected: dict[str, Any], more: dict[str, Any]
) -> None:
    """After warm-up and three rounds all weights differ by at most 1e-6.

    SGD shows the divisor of the gradients, which AdamW hides.
    """
    world = {**WORLD, **more}
    if "inner" in more:
        (expected,) = training.run(job="reference", **{**world, "world": 1, "kind": "plain"})
    ranks = training.run(job="train", **{**world, "world": 4, "kind": "fsdp"})
    for rank, found in enumerate(ranks):
        assert apart(found["weights"], expected["weights"][rank // 2]) <= 1e-6
    assert (ranks[0]["outcomes"], ranks[0]["steps"]) == (2 * 4, 9)


def test_what_cannot_be_synchronised_is_refused_by_name(training: Training) -> None:
    """The message says what to change."""
    said = training.run(job="refused", world=4, kind="fsdp", mesh=[2, 2])[0]
    assert {name: text.split(":")[0] for name, text in said.items()} == {
        "plain": "model",
        "full shard": "model",
        "prefetch": "model",
        "shards": "shards()",
    }
    assert "sharding_strategy=FULL_SHARD" in said["full shard"]
    assert "forward_prefetch=True" in said["prefetch"]
