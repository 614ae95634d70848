"""Megatron replicas that come and go: each a Megatron world of its own, and nobody restarts.

Each test draws its seed, and names it where it fails.
"""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from house.extended import usual
from local_sgd.elastic_runs import check_kept, run
from megatron_worlds.key_biases import without_key_biases
from megatron_worlds.worlds import Worlds

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "local_sgd/process/test_megatron_members.py::test_one_is_killed_and_one_joins",
    ],
)
SCENARIO: Final[dict[str, Any]] = {"kind": "megatron", "interval": 3, "shards": 2, "setup": {}}


@pytest.mark.extended(
    "rounds of one world are the same code, and are compared with formulas",
    held_by=[
        "local_sgd/process/test_megatron_members.py::test_one_is_killed_and_one_joins",
        "local_sgd/process/test_megatron.py::test_two_replicas_train_as_whole_ones",
    ],
)
def test_replicas_that_nothing_happens_to_train_as_those_of_one_world() -> None:
    """Two replicas of two ranks, each in a world of its own: weights of a fixed job, to 1e-6."""
    told = run(scenario="static", replicas=2, rounds=2, **SCENARIO)
    given: dict[str, Any] = {
        "setup": {"layers": 1, "hidden": 16},
        "config": {"local_sgd_sync_interval": 3},
        "outer": {"lr": 0.7, "momentum": 0.8, "nesterov": True},
    }
    with Worlds() as worlds:
        fixed = worlds.run(job="replicas", call="train", world=4, replicas=2, steps=6, **given)
    for name, lines in told["ranks"].items():
        replica, shard = map(int, name.split())
        both = lines[-1]["weights"], fixed[2 * replica + shard]["weights"]
        found, expected = (without_key_biases(each, 16) for each in both)
        assert found.keys() == expected.keys()
        for key, values in found.items():
            assert values == pytest.approx(expected[key], abs=1e-6), key


def test_one_is_killed_and_one_joins() -> None:
    """All keep their processes and steps; anchors are the same bits on all after each round."""
    seed = random.randrange(10_000)
    told = run(scenario="campaign", replicas=3, events=["kill", "join"], every=2, seed=seed,
               **SCENARIO)  # fmt: skip
    why = f"seed {seed}: {told['done']}"
    _check_kept(told, why)
    _check_joiner(told, why)


@pytest.mark.extended(
    "what Megatron adds to members is in the other test, and rounds by time in theirs",
    held_by=[
        "local_sgd/process/test_megatron_members.py::test_one_is_killed_and_one_joins",
        "local_sgd/process/test_megatron_by_time.py::test_replicas_of_unlike_pace_enter_each_round_together",
        "local_sgd/process/test_elastic_by_time.py::test_by_time_each_step_counts_once",
    ],
)
@pytest.mark.parametrize(
    "setup",
    usual([{}, {"tensor": 2}], {}, more=MORE),
    ids=["distributed optimizer", "tensor parallel"],
)
def test_by_time_members_come_and_go(setup: dict[str, Any]) -> None:
    """A-EDiT: one is slow, one is killed, one comes and one is frozen; nobody is restarted."""
    seed = random.randrange(10_000)
    config = {"use_async": True, "local_sgd_sync_time": 0.2, "use_step_weight": True}
    events = ["kill", "join", "freeze"]
    told = run(scenario="campaign", replicas=3, events=events, every=2, seed=seed, slow=0,
               config=config, **{**SCENARIO, "setup": setup})  # fmt: skip
    why = f"seed {seed}: {told['done']}"
    _check_kept(told, why, split="tensor" in setup, by_time=True)


def _check_kept(
    told: dict[str, Any], why: str, *, split: bool = False, by_time: bool = False
) -> None:
    """The same as `check_kept`, and replicas to equal ends.

    split: the two ranks of a replica have different weights. by_time: each counts its own steps.
    """
    check_kept(told, why, 0, "samples", by_time=by_time)
    ends = [
        told["ranks"][f"{one} {shard}"][-1]["weights"]
        for one in told["members"]
        for shard in (0, 1)
    ]
    apart = 2 if split else 1
    assert all(one == ends[number % apart] for number, one in enumerate(ends)), why


def _check_joiner(told: dict[str, Any], why: str) -> None:
    """Its step count and moments are those of a survivor at that step."""
    for shard in (0, 1):
        begins = told["ranks"][f"3 {shard}"][0]["begins"]
        others = [
            line["moments"]
            for replica in (0, 1, 2)
            for line in told["ranks"][f"{replica} {shard}"]
            if line.get("step") == begins["at"]
        ]
        assert begins["joined"], why
        assert begins["at"] > 0, why
        assert min(others) * 0.5 < begins["moments"] < max(others) * 2, why
