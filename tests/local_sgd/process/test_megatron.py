"""Replicas under Megatron-core train as whole replicas do that follow the formula."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import pytest

from house.extended import usual
from megatron_worlds.key_biases import without_key_biases
from megatron_worlds.worlds import Worlds

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "local_sgd/process/test_megatron.py::test_two_replicas_train_as_whole_ones",
        "local_sgd/process/test_megatron.py::test_atorch_bug_8_gradients_are_averaged_until_the_warm_up_ends",
    ],
)
REPLICAS: Final = 2
SMALL: Final = {"layers": 2, "hidden": 16}
EDIT: Final[dict[str, Any]] = {
    "config": {
        "local_sgd_warmup_steps": 2,
        "local_sgd_sync_interval": 3,
        "pseudo_gradnorm_reduce": True,
        "weight_softmax_temperature": 0.05,
        "clip_pseudo_grad": 0.02,
    },
    "outer": {"lr": 0.7, "momentum": 0.8, "nesterov": True},
    "steps": 8,
}
CASES: Final[dict[str, dict[str, Any]]] = {
    "distributed optimizer": {},
    "overlapped gradients and gathers": {"buckets": 2000, "late_gather": True},
    "plain optimizer, SGD": {"distributed": False, "optimizer": "sgd", "clip": 0.0},
    "tensor parallel": {"tensor": 2},
    "pipeline parallel": {"pipeline": 2},
}


def _run(worlds: Worlds, call: str, world: int = 4, **given: Any) -> list[dict[str, Any]]:
    setup = {**SMALL, **given.pop("setup", {})}
    shared = {"replicas": REPLICAS, "steps": 6, **given}
    return worlds.run(job="replicas", call=call, world=world, setup=setup, **shared)


def _apart(one: dict[str, list[float]], other: dict[str, list[float]]) -> float:
    """Return the greatest difference of two models' weights, but of those that rounding decides."""
    one, other = (without_key_biases(each, SMALL["hidden"]) for each in (one, other))
    assert one.keys() == other.keys()
    pairs = ((a, b) for name in one for a, b in zip(one[name], other[name], strict=True))
    return max(abs(a - b) for a, b in pairs)


@pytest.mark.parametrize("name", usual(CASES, next(iter(CASES)), more=MORE))
def test_two_replicas_train_as_whole_ones(worlds: Worlds, name: str) -> None:
    """Weights differ from the formula's by at most 1e-6; gradients are the mean of one replica."""
    setup = CASES[name]
    model = setup.get("tensor", 1) * setup.get("pipeline", 1)
    whole = {key: one for key, one in setup.items() if key in ("tensor", "pipeline", "optimizer")}
    whole |= {"clip": setup.get("clip", 1.0)}
    expected = _run(worlds, "reference", world=model, **{**EDIT, "setup": whole})
    found = _run(worlds, "train", **{**EDIT, "setup": setup})
    tensor, parallel = setup.get("tensor", 1), 4 // model
    for rank, one in enumerate(found):
        stage, place = divmod(rank, tensor * parallel)
        replica = place // tensor // (parallel // REPLICAS)
        reference = expected[stage * tensor + rank % tensor]["replicas"][replica]
        assert _apart(one["weights"], reference) <= 1e-6
        assert set(one["factors"]) == {REPLICAS / parallel}
        assert [len(norms) for _, norms, _ in one["outcomes"][4]] == [REPLICAS] * len(one["units"])


@pytest.mark.parametrize(
    ("warm_up", "interval"), usual([(5, 2), (1, 4), (0, 3)], (5, 2), more=MORE)
)
def test_atorch_bug_8_gradients_are_averaged_until_the_warm_up_ends(
    worlds: Worlds, warm_up: int, interval: int
) -> None:
    """The warm-up's length counts, not the interval, however the two compare."""
    config = {"local_sgd_warmup_steps": warm_up, "local_sgd_sync_interval": interval}
    first, _, other, _ = _run(worlds, "train", config=config, steps=8)
    equal = [a == b for a, b in zip(first["sums"], other["sums"], strict=True)]
    expected = [step <= warm_up or (step - warm_up) % interval == 0 for step in range(1, 9)]
    assert equal[1:] == expected[1:]  # the first step's learning rate is 0


def test_a_step_that_a_loss_scaler_leaves_out_counts(worlds: Worlds) -> None:
    """A replica whose last step before a round overflows takes part in the round all the same."""
    ranks = _run(
        worlds,
        "train",
        setup={"precision": "fp16"},
        config={"local_sgd_sync_interval": 3},
        spoiled=[2, 1],
        steps=4,
    )
    assert len({one["sums"][2] for one in ranks}) == 1
    assert ranks[0]["sums"][3] != ranks[2]["sums"][3]
    assert all(round_ == 1 for round_, *_ in ranks[2]["outcomes"][2])


def test_a_replica_of_nan_leaves_the_others_finite(worlds: Worlds) -> None:
    """It weighs nothing and gets the others' weights, on all tensor parallel ranks."""
    ranks = _run(
        worlds,
        "train",
        setup={"tensor": 2},
        config={"local_sgd_sync_interval": 3},
        spoiled=[1, 1],
        steps=3,
    )
    after = [one["sums"][2] for one in ranks]
    assert after[:2] == after[2:]
    assert all(math.isfinite(one) for one in after)
    assert {tuple(weights) for _, _, weights in ranks[0]["outcomes"][2]} == {(1.0, 0.0)}


def test_half_precision_weights_follow_the_masters(worlds: Worlds) -> None:
    """After a round all ranks have equal bf16 weights, with anchors in the CPU's memory."""
    ranks = _run(
        worlds,
        "train",
        setup={"precision": "bf16"},
        config={"local_sgd_sync_interval": 3, "cpu_offload": True, "skip_anomaly": True},
    )
    assert len({one["sums"][5] for one in ranks}) == 1
    assert ranks[0]["sums"][4] != ranks[2]["sums"][4]


def test_a_script_of_its_own_needs_no_patch(worlds: Worlds) -> None:
    """With the replicas' groups passed by hand, replicas part, agree, and go on without hooks."""
    config = {"local_sgd_sync_interval": 3}
    ranks = _run(worlds, "by hand", config=config, steps=5)
    assert ranks[0]["parted"] != ranks[2]["parted"]
    assert len({one["equal"] for one in ranks}) == 1
    assert ranks[0]["alone"] != ranks[2]["alone"]
    assert {one["steps"] for one in ranks} == {5}


def test_a_lost_replica_costs_the_others_no_step(worlds: Worlds) -> None:
    """The round that failed is made by those that are left, and so are the next ones."""
    config = {"local_sgd_sync_interval": 2}
    lost: dict[str, Any] = {"replicas": 4, "config": config, "ends_at": 3, "steps": 6}
    survivors = _run(worlds, "survive", **lost)[:3]
    for one in survivors:
        assert "the units are unchanged" in one["failed"]
        assert (one["at"], one["steps"], one["rounds"]) == (3, 6, [0, 1, 1, 2, 2, 3])
    assert len({one["sum"] for one in survivors}) == 1


def test_megatron_s_own_training_takes_its_flags(worlds: Worlds, tmp_path: Path) -> None:
    """Each data parallel rank is a replica; Megatron's calls save and load all of them."""
    args: dict[str, Any] = {
        "use_local_sgd": True,
        "local_sgd_sync_interval": 2,
        "local_sgd_warmup_steps": 1,
        "num_layers": 2,
    }
    world: dict[str, Any] = {"world": 2, "args": args, "root": str(tmp_path), "until": 6}
    first = _run(worlds, "by flags", save=4, **world)
    assert [one["replicas"] for one in first] == [2, 2]
    assert first[0]["saved"] != first[1]["saved"]
    again = _run(worlds, "by flags", **world)
    assert [one["start"] for one in again] == [4, 4]
    assert [one["loaded"] for one in again] == [one["saved"] for one in first]
    assert [one["end"] for one in again] == [one["end"] for one in first]
    without = {**world, "root": str(tmp_path / "other"), "args": {**args, "use_local_sgd": False}}
    assert [one["replicas"] for one in _run(worlds, "by flags", **without)] == [0, 0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"setup": {"experts": 2}}, "num_moe_experts=2: experts have data parallel groups"),
        ({"setup": {"pipeline": 2, "tied": True}}, "share_embeddings_and_output_weights=True"),
        (
            {"setup": {"tensor": 2}, "config": {"codec": "int8"}},
            "codec='int8': with tensor_model_parallel_size=2",
        ),
        (
            {
                "config": {
                    "use_async": True,
                    "use_step_weight": True,
                    "step_weight_by": "tokens",
                }
            },
            "step_weight_by='tokens': with DDP and Megatron nobody tells the tokens",
        ),
        (
            {"unpatched": True, "setup": {"instances": 2}},
            "model chunk 0 reduces its gradients among ranks [0, 1, 2, 3]",
        ),
        ({"replicas": 3}, "replicas=3: 4 data parallel ranks cannot be cut"),
    ],
)
def test_what_a_round_would_leave_wrong_is_refused(
    worlds: Worlds, given: dict[str, Any], said: str
) -> None:
    """Every rank names the setting and what to do, before it trains."""
    ranks = _run(worlds, "refuse", **given)
    assert all(one["refused"].startswith(said) for one in ranks), ranks[0]
