"""The averager and the optimizer of DDP: real DDP models on gloo, as a script has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from house.extended import usual
from local_sgd.compared import NESTEROV
from local_sgd.replica_world import ReplicaWorlds

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "local_sgd/process/test_ddp.py::test_replicas_end_as_one_process_computes_them",
    ],
)
WARM = {"local_sgd_warmup_steps": 5, "local_sgd_sync_interval": 3}
COLD = {"local_sgd_sync_interval": 3}


def _ddp(worlds: ReplicaWorlds, **world: Any) -> list[dict[str, Any]]:
    settings = {"job": "ddp", "kind": "gloo", "world": 2, "lr": 0.1, "steps": 11, **world}
    return worlds.run(**settings)


@pytest.mark.parametrize("outer", [None, NESTEROV], ids=["averaging", "nesterov"])
@pytest.mark.parametrize("config", [COLD, WARM], ids=["cold", "warm"])
@pytest.mark.parametrize("replicas", usual([2, 4], 4, more=MORE))
def test_replicas_end_as_one_process_computes_them(
    worlds: ReplicaWorlds, outer: Any, config: dict[str, Any], replicas: int
) -> None:
    """Warm-up, local steps, three rounds and local steps again: no weight is off by 1e-6."""
    from local_sgd.ddp_replicas import alone

    world = {"config": config, "outer": outer, "lr": 0.1, "steps": 15}
    answers = _ddp(worlds, **world, world=replicas)
    wanted = alone(world, replicas)
    for answer, weights in zip(answers, wanted, strict=True):
        for found, one in zip(answer["weights"], weights, strict=True):
            assert found == pytest.approx(one, abs=1e-6)


def test_cold_anchors_are_the_weights_before_the_first_step(worlds: ReplicaWorlds) -> None:
    """With no warm-up the replicas are bitwise equal after each round (ATorch bug 3)."""
    answers = _ddp(worlds, config=COLD, outer=NESTEROV, steps=9)
    assert len({one["equal"] for one in answers}) == 1


def test_the_first_round_does_not_repeat_the_warm_up(worlds: ReplicaWorlds) -> None:
    """Anchors are those of the warm-up's end: the first round moves as a round (ATorch bug 4)."""
    config = {"local_sgd_warmup_steps": 40, "local_sgd_sync_interval": 4}
    (answer, _) = _ddp(worlds, config=config, outer=NESTEROV, steps=44)
    inner, first_round = answer["moved"][40:43], answer["moved"][43]
    assert first_round <= 4 * max(inner) * 1.26
    assert first_round > 0


def test_parameters_without_gradients_keep_their_anchors(worlds: ReplicaWorlds) -> None:
    """The first parameter never has a gradient; no anchor is another's (ATorch bug 12)."""
    world = {"config": COLD, "outer": NESTEROV, "steps": 9}
    plain, unused = _ddp(worlds, **world), _ddp(worlds, **world, unused=True)
    for without, answer in zip(plain, unused, strict=True):
        assert answer["weights"][0] == [1.0] * 64
        assert answer["weights"][1:] == without["weights"]


def test_one_call_sets_up_what_takes_three_parts_else(worlds: ReplicaWorlds) -> None:
    """The same bits; and accumulation needs no `no_sync`: its hook counts steps."""
    world = {"config": WARM, "outer": NESTEROV}
    plain, ready = _ddp(worlds, **world), _ddp(worlds, **world, by_one_call=True)
    assert [one["digest"] for one in plain] == [one["digest"] for one in ready]
    for one, other in zip(plain, _ddp(worlds, **world, by_one_call=True, micros=2), strict=True):
        for found, wanted in zip(other["weights"], one["weights"], strict=True):
            assert found == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("config", [COLD, WARM], ids=["cold", "warm"])
def test_fixed_replicas_of_two_ranks_average_their_own_gradients(
    worlds: ReplicaWorlds, config: dict[str, Any]
) -> None:
    """In the warm-up those of all; then of the replica's two, as two processes compute them."""
    from local_sgd.ddp_replicas import alone

    world = {"config": config, "outer": NESTEROV, "lr": 0.1, "steps": 13, "shards": 2}
    wanted = alone(world, 2)
    for rank, answer in enumerate(_ddp(worlds, **world, world=4, by_one_call=True)):
        for found, one in zip(answer["weights"], wanted[rank // 2], strict=True):
            assert found == pytest.approx(one, abs=1e-6)


@pytest.mark.parametrize("framework", ["ddp", "fsdp2"])
def test_a_mean_over_fixed_members_is_refused_by_time(
    worlds: ReplicaWorlds, framework: str
) -> None:
    """A replica that waits in a round would never come to it: the error says what to change."""
    config = {"use_async": True, "local_sgd_sync_time": 60.0, "local_sgd_warmup_steps": 1}
    world = {"kind": "gloo", "world": 2, "lr": 0.1, "steps": 8, "config": config}
    for answer in worlds.run(job="spans", framework=framework, **world):
        assert "use_async=True: the script or DDP makes collectives" in answer["said"] or (
            "use_async=True: layer" in answer["said"]
        )
        assert "average logged values inside a replica" in answer["said"]


def test_a_state_dict_changes_nothing(worlds: ReplicaWorlds) -> None:
    """A script that asks each rank at each step trains the same bits (ATorch bug 10)."""
    world = {"config": WARM, "outer": NESTEROV}
    plain, asked = _ddp(worlds, **world), _ddp(worlds, **world, ask_every_step=True)
    assert [one["digest"] for one in plain] == [one["digest"] for one in asked]


@pytest.mark.parametrize("config", [COLD, WARM], ids=["cold", "warm"])
def test_each_rank_resumes_from_its_own_state_exactly(
    worlds: ReplicaWorlds, tmp_path: Path, config: dict[str, Any]
) -> None:
    """Saved in the middle of a round, weights and all state are those of an unbroken run."""
    world = {
        "config": {**config, "skip_anomaly": True, "codec": "int8", "error_feedback": True}
        | {"error_feedback_with_momentum": True},
        "outer": NESTEROV,
        "inner": "adamw",
        "lr": 0.01,
    }
    unbroken = _ddp(worlds, **world, steps=13)
    path = str(tmp_path / "state")
    _ddp(worlds, **world, steps=10, save=path)
    again = _ddp(worlds, **world, steps=13, resume=path, own=True, **{"from": 10})
    assert [one["digest"] for one in again] == [one["digest"] for one in unbroken]


def test_all_ranks_resume_from_the_state_of_rank_0(worlds: ReplicaWorlds, tmp_path: Path) -> None:
    """As DDP scripts do: after the next round all replicas are equal again (ATorch bug 3)."""
    world = {"config": COLD, "outer": NESTEROV}
    path = str(tmp_path / "state")
    _ddp(worlds, **world, steps=5, save=path)
    again = _ddp(worlds, **world, steps=9, resume=path, own=False, **{"from": 5})
    assert len({one["equal"] for one in again}) == 1
    assert [one["step"] for one in again] == [9, 9]


def test_each_rank_has_the_detectors_of_every_replica(worlds: ReplicaWorlds) -> None:
    """So rank 0's state is enough for all (ATorch bug 11)."""
    config = {**COLD, "skip_anomaly": True}
    answers = _ddp(worlds, config=config, outer=NESTEROV, world=3, steps=3)
    assert all(one["detectors"] == [3, 3, 3, 3] for one in answers)


@pytest.mark.parametrize("strike", ["nan", "inf"])
def test_a_replica_with_nan_is_left_out_and_healed(worlds: ReplicaWorlds, strike: str) -> None:
    """One weight of one replica is not finite before a round; after it all are equal and finite."""
    struck = {"struck": 1, "struck_at": 7, "strike": strike}
    answers = _ddp(worlds, config=COLD, outer=NESTEROV, world=3, steps=9, **struck)
    assert len({one["equal"] for one in answers}) == 1
    assert all(abs(one) < 10 for tensor in answers[0]["weights"] for one in tensor)
    assert answers[0]["anomalous"][0] == [False, True, False]
    assert answers[0]["anomalous"][1:] == [[False] * 3] * 3 or strike == "nan"


def test_gta_with_a_density_agrees_under_ddp(worlds: ReplicaWorlds) -> None:
    """Half of each delta stays; replicas end equal, and not where the mean is (ATorch bug 2)."""
    gta = {"reducer": "gta", "consensus_method": "sum", "sparsification_method": "magnitude"}
    world = {"config": COLD, "outer": NESTEROV, "world": 3, "steps": 9}
    thinned, mean = _ddp(worlds, **world, gta={**gta, "density": 0.5}), _ddp(worlds, **world)
    assert len({one["equal"] for one in thinned}) == 1
    assert thinned[0]["equal"] != mean[0]["equal"]


SPIKE = {"world": 4, "inner": "adamw", "lr": 0.006, "held_out": True, "steps": 80}
PENALTIES: dict[str, dict[str, Any]] = {
    "uniform": {},
    "weights alone": {"pseudo_gradnorm_reduce": True, "weight_softmax_temperature": 0.1},
    "elimination alone": {"skip_anomaly": True, "ewma_alpha": 0.2, "ewma_warmup_steps": 3},
}


@pytest.mark.parametrize("name", PENALTIES)
def test_one_replica_with_a_wild_round_costs_nothing(worlds: ReplicaWorlds, name: str) -> None:
    """One of four trains a round at 30 times the learning rate: the jump of the held-out loss.

    It is at least 0.15 with equal weights, and at most 0.02 with either penalty alone.
    """
    config = {"local_sgd_warmup_steps": 16, "local_sgd_sync_interval": 8, **PENALTIES[name]}
    outer = {"lr": 0.7, "momentum": 0.8, "nesterov": True}
    wild, calm = (
        _ddp(worlds, config=config, outer=outer, **SPIKE, **one)[0]["held_out"]
        for one in ({"wild": [64, 72]}, {})
    )
    jump = wild[71] - calm[71]
    assert jump >= 0.15 if name == "uniform" else jump <= 0.02, (jump, wild[63], wild[71])


def test_all_replicas_wild_roll_back(worlds: ReplicaWorlds) -> None:
    """All of four train a round at 30 times the rate: the weights of the round before return."""
    config = {"local_sgd_warmup_steps": 16, "local_sgd_sync_interval": 8}
    config |= PENALTIES["elimination alone"]
    answers = _ddp(
        worlds,
        config=config,
        outer=NESTEROV,
        **{**SPIKE, "steps": 72},
        wild=[64, 72],
        all_wild=True,
    )
    assert answers[0]["held_out"][71] - answers[0]["held_out"][63] <= 0.03
    assert all(all(one) for one in answers[0]["anomalous"])


def test_schedulers_hooks_and_plain_states_work(worlds: ReplicaWorlds) -> None:
    """It is a `torch.optim.Optimizer`: groups stay one list also after a state was loaded."""
    for answer in worlds.run(
        job="torch", kind="gloo", world=2, lr=0.1, config={"local_sgd_sync_interval": 2}
    ):
        assert answer == {
            "lr": 0.05,
            "same": True,
            "is_optimizer": True,
            "calls": 1,
            "step": 1,
        }


def test_an_averager_alone_and_unequal_replicas_are_told(worlds: ReplicaWorlds) -> None:
    """No anchors before the first local step; anchors that differ between replicas."""
    (first, second) = worlds.run(job="refusals", kind="gloo", world=2, apart=1.0)
    for said in (first["said"], second["said"]):
        assert "wrap the optimizer in StatefulPostLocalSGDOptimizer" in said[0]
        assert "AnchorsDifferError: replicas 0 and 1 start from different weights" in said[1]
    assert worlds.run(job="refusals", kind="gloo", world=2, apart=0.0)[0]["said"][1] == ""
