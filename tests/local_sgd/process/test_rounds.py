"""Rounds of real replicas against plain floats in one process: weights, decisions, bits, bytes."""

from __future__ import annotations

from typing import Any

import pytest

from house.extended import usual
from local_sgd.compared import NESTEROV
from local_sgd.replica_world import DEFAULTS, ReplicaWorlds
from local_sgd.scalar_edit import ScalarEdit

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "local_sgd/process/test_rounds.py::test_replicas_and_plain_floats_agree",
        "local_sgd/process/test_rounds.py::test_what_is_not_finite_stays_on_its_replica",
    ],
)
MOMENTUM = {"lr": 0.5, "momentum": 0.9}
SETTINGS: dict[str, dict[str, Any]] = {
    "averaging": {},
    "momentum": {"outer": MOMENTUM},
    "nesterov": {"outer": NESTEROV, "clip": 0.2},
    "clipped together": {"outer": NESTEROV, "clip": 0.3, "clip_scope": "batch"},
    "weighted": {"outer": NESTEROV, "temperature": 0.1, "clip": 0.5},
    "offloaded": {"outer": NESTEROV, "temperature": 1.0, "offload": True},
    "spike": {
        "outer": NESTEROV,
        "temperature": 1.0,
        "rounds": 8,
        "fault": {"replica": 1, "round": 6, "unit": 0, "kind": "spike"},
    },
    "nan": {
        "outer": NESTEROV,
        "fault": {"replica": 0, "round": 2, "unit": 2, "kind": "nan"},
    },
    "inf": {
        "temperature": 1.0,
        "fault": {"replica": 1, "round": 0, "unit": 0, "kind": "inf"},
    },
}


def _whole(answers: list[dict[str, Any]], replica: int, shards: int) -> list[list[float]]:
    """Return a replica's weights, its shards behind one another."""
    mine = answers[replica * shards : (replica + 1) * shards]
    units = zip(*(one["weights"] for one in mine), strict=True)
    return [[value for part in parts for value in part] for parts in units]


def _distance(answers: list[dict[str, Any]], reference: ScalarEdit, shards: int) -> float:
    return max(
        abs(found - wanted)
        for replica in reference.replicas
        for own, units in zip(
            _whole(answers, replica, shards), reference.weights[replica], strict=True
        )
        for found, wanted in zip(own, units, strict=True)
    )


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(
    ("replicas", "shards"), usual([(2, 1), (4, 1), (2, 2), (1, 2)], (4, 1), (2, 2), more=MORE)
)
def test_replicas_and_plain_floats_agree(
    worlds: ReplicaWorlds, name: str, replicas: int, shards: int
) -> None:
    """After all rounds no weight is off by more than 1e-6, and all replicas are bitwise equal."""
    world = {**SETTINGS[name], "replicas": replicas, "shards": shards}
    answers = worlds.train(**world)
    reference = ScalarEdit({**DEFAULTS, **world}).run()
    assert _distance(answers, reference, shards) <= 1e-6
    for shard in range(shards):
        assert len({one["digest"] for one in answers[shard::shards]}) == 1
    excluded = [
        [(replica, unit) for unit, one in enumerate(some) for replica in _zeros(one)]
        for some in answers[0]["decisions"]
    ]
    assert [sorted(some) for some in reference.excluded] == [sorted(some) for some in excluded]
    assert any(reference.excluded) == (world.get("fault", {"replica": 9})["replica"] < replicas)


@pytest.mark.parametrize(("dtype", "most"), [("float64", 1e-13), ("bfloat16", 0.05)])
def test_other_dtypes_agree_to_their_precision(
    worlds: ReplicaWorlds, dtype: str, most: float
) -> None:
    """Doubles agree to 1e-13; bf16 is summed as bf16, and equal on all replicas as well."""
    world = {"outer": NESTEROV, "temperature": 1.0, "clip": 0.5, "dtype": dtype, "replicas": 3}
    answers = worlds.train(**world)
    assert _distance(answers, ScalarEdit({**DEFAULTS, **world}).run(), 1) <= most
    assert len({one["digest"] for one in answers}) == 1


def _zeros(decision: Any) -> list[int]:
    weights, rollback, _ = decision
    return list(range(len(weights))) if rollback else [i for i, w in enumerate(weights) if w == 0]


@pytest.mark.parametrize("kind", usual(["nan", "inf", "-inf"], "nan", "-inf", more=MORE))
@pytest.mark.parametrize(
    "codec", usual(["none", "bf16", "int8", "int4"], "none", "int8", more=MORE)
)
def test_what_is_not_finite_stays_on_its_replica(
    worlds: ReplicaWorlds, kind: str, codec: str
) -> None:
    """One of three replicas has NaN or Inf: it is left out, all weights are finite (ATorch 6)."""
    fault = {"replica": 1, "round": 1, "unit": 0, "kind": kind}
    answers = worlds.train(
        replicas=3, codec=codec, feedback=codec != "none", outer=NESTEROV, fault=fault, rounds=3
    )
    assert len({one["digest"] for one in answers}) == 1
    assert all(abs(w) < 10 for unit in answers[0]["weights"] for w in unit)
    for one in answers:
        assert one["decisions"][1][0][0] == pytest.approx([0.5, 0.0, 0.5])
        assert one["decisions"][1][2][0] == pytest.approx([1 / 3] * 3)


def test_without_a_detector_what_is_not_finite_is_left_out_too(worlds: ReplicaWorlds) -> None:
    """`skip_anomaly` is off: NaN is no matter of taste."""
    fault = {"replica": 0, "round": 0, "unit": 0, "kind": "nan"}
    answers = worlds.train(skip_anomaly=False, fault=fault, rounds=1)
    assert answers[0]["decisions"][0][0][0] == [0.0, 1.0]
    assert all(abs(w) < 10 for one in answers for unit in one["weights"] for w in unit)


def test_all_replicas_anomalous_roll_back_together(worlds: ReplicaWorlds) -> None:
    """A shard with zeros of its own does not judge for itself: flags decide (ATorch bug 9).

    Unit 0 has NaN on the first shard of both replicas; the second shard's values are finite.
    """
    answers = worlds.train(shards=2, outer=NESTEROV, rounds=2, job="all struck")
    assert all(one["decisions"][1][0][1] for one in answers)
    assert not any(one["decisions"][1][2][1] for one in answers)
    for one in answers:
        assert one["weights"][0] == one["after_round_1"][0]  # the anchors of the round before
        assert one["momentum"][0] == one["momentum_before"][0]
        assert one["rounds"] == [2, 2, 2]


def test_units_begun_ahead_end_alike(worlds: ReplicaWorlds) -> None:
    """The reduction of unit k+1 is in flight while unit k finishes: sums differ in order only."""
    world = {"outer": NESTEROV, "temperature": 0.1, "clip": 0.5, "shards": 2, "steps": 2}
    together, ahead = worlds.train(**world), worlds.train(**world, ahead=True)
    for answer, other in zip(together, ahead, strict=True):
        pairs = zip(answer["weights"], other["weights"], strict=True)
        flat = [one for units in pairs for one in zip(*units, strict=True)]
        assert max(abs(a - b) for a, b in flat) <= 1e-6
    assert len({one["digest"] for one in ahead[::2]}) == 1


def test_other_rounds_and_late_ranks_are_told_and_change_nothing(worlds: ReplicaWorlds) -> None:
    """Replicas at different rounds refuse; one that is late costs the others their deadline."""
    answers = worlds.train(job="refused", outer=NESTEROV)
    for answer in answers:
        assert answer["same"]
        assert (
            "RoundsDifferError: unit unit 0: the replicas are at different rounds"
            in (answer["said"][0])
        )
        assert "(replica 0 at 1, replica 1 at 2)" in answer["said"][0]
    (first, _) = answers
    assert "SyncError: all_gather of rank 0 of 2 failed (deadline 1 s)" in first["said"][1]
    assert first["took"][1] >= 1.0
    assert "this group has failed before" in first["said"][2]
