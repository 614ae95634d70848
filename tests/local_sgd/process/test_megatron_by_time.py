"""A-EDiT under Megatron: rounds by time, replicas of unlike pace, and an end that loses nothing."""

from __future__ import annotations

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
        "local_sgd/process/test_megatron_by_time.py::test_replicas_of_unlike_pace_enter_each_round_together",
        "local_sgd/process/test_megatron_by_time.py::test_a_replica_without_data_takes_results_and_weighs_nothing",
        "local_sgd/process/test_megatron_by_time.py::test_replicas_save_together_after_a_round",
        "local_sgd/process/test_megatron_by_time.py::test_a_training_that_stopped_between_two_rounds_goes_on_as_if_it_had_not",
    ],
)
REPLICAS: Final = 2
SMALL: Final = {"layers": 2, "hidden": 16}
SECONDS: Final = 0.8
"""τ of these tests."""
NEVER: Final = 10_000.0
"""τ of tests whose rounds end with the data alone."""
LAYOUTS: Final[dict[str, dict[str, Any]]] = {
    "distributed optimizer": {},
    "overlapped gradients and gathers": {"buckets": 2000, "late_gather": True},
    "plain optimizer": {"distributed": False},
    "tensor parallel": {"tensor": 2},
    "pipeline parallel": {"pipeline": 2},
}


def _run(worlds: Worlds, call: str = "train", world: int = 4, **given: Any) -> list[dict[str, Any]]:
    config = {
        "use_async": True,
        "local_sgd_sync_time": given.pop("tau", SECONDS),
        "min_total_global_steps": given.pop("least", 1),
        "use_step_weight": True,
        **given.pop("config", {}),
    }
    return worlds.run(
        job="by time",
        call=call,
        world=world,
        replicas=REPLICAS,
        setup={**SMALL, **given.pop("setup", {})},
        config=config,
        outer={"lr": 0.7, "momentum": 0.8, "nesterov": True},
        **{"seconds": [0.01, 0.3], **given},
    )


def _of_replicas(ranks: list[dict[str, Any]], setup: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the ranks of each replica, in the order of their shards."""
    stages = setup.get("pipeline", 1)
    wide = len(ranks) // stages
    half = wide // REPLICAS
    return [
        [ranks[stage * wide + at] for stage in range(stages) for at in range(first, first + half)]
        for first in (0, half)
    ]


def _counts(fast: list[dict[str, Any]], slow: list[dict[str, Any]], warm_up: int) -> list[Any]:
    """Return the steps of both replicas in each round."""
    ends = [[one["at"], other["at"]] for one, other in zip(fast, slow, strict=True)]
    begins = [[warm_up, warm_up], *ends[:-1]]
    pairs = zip(begins, ends, strict=True)
    return [[end[at] - begin[at] for at in (0, 1)] for begin, end in pairs]


def _shares(mine: int, its: int) -> list[float]:
    """Return weights by steps; a last round may find that nobody has made any."""
    total = mine + its
    return [mine / total, its / total] if total else [0.0, 0.0]


@pytest.mark.parametrize("name", usual(LAYOUTS, "pipeline parallel", more=MORE))
def test_replicas_of_unlike_pace_enter_each_round_together(worlds: Worlds, name: str) -> None:
    """Anchors are the same bits on all, steps weigh, and none waits for the slow one's steps."""
    setup = LAYOUTS[name]
    ranks = _run(worlds, setup=setup, steps=[40, 6])
    assert ranks[0]["parted"] != ranks[-1]["parted"]
    fast, slow = _of_replicas(ranks, setup)
    for one, other in zip(fast, slow, strict=True):
        assert [each["anchors"] for each in one["rounds"]] == [
            each["anchors"] for each in other["rounds"]
        ]
        assert [each["round"] for each in one["rounds"]] == [*range(1, len(one["rounds"]) + 1)]
        assert all(each["together"] for each in one["rounds"])
        assert one["end"]["masters"] == other["end"]["masters"] == one["end"]["anchors"]
        counts = _counts(one["rounds"], other["rounds"], 0)
        found = [each["weights"] for each in one["rounds"]]
        assert found == [[pytest.approx(_shares(*each))] for each in counts]
    counts = _counts(fast[0]["rounds"], slow[0]["rounds"], 0)
    assert len(counts) >= 2
    assert sum(mine for mine, _ in counts[:-1]) > sum(its for _, its in counts[:-1])


@pytest.mark.parametrize("setup", usual([{}, {"tensor": 2}], {"tensor": 2}, more=MORE))
def test_two_replicas_train_as_whole_ones_with_the_same_steps(
    worlds: Worlds, setup: dict[str, Any]
) -> None:
    """After a warm-up, weights differ from the formula's for these rounds by at most 1e-6.

    Key biases are none of them: see `without_key_biases`.
    """
    config = {"local_sgd_warmup_steps": 2, "clip_pseudo_grad": 0.02}
    found = _run(worlds, setup=setup, config=config, steps=[12, 5], tau=0.4, seconds=[0.02, 0.15])
    fast, slow = _of_replicas(found, setup)
    rounds = _counts(fast[0]["rounds"], slow[0]["rounds"], 2)
    given = {"config": config, "rounds": rounds, "world": setup.get("tensor", 1)}
    expected = _run(worlds, "reference", setup=setup, **given)
    for replica, ranks in enumerate((fast, slow)):
        for at, one in enumerate(ranks):
            whole = expected[at % len(expected)]["replicas"][replica]
            mine, its = (
                without_key_biases(each, SMALL["hidden"]) for each in (one["weights"], whole)
            )
            assert mine.keys() == its.keys()
            for key, values in mine.items():
                assert values == pytest.approx(its[key], abs=1e-6), (key, rounds)


@pytest.mark.parametrize("steps", usual([[2, 8], [0, 5]], [2, 8], more=MORE))
def test_a_replica_without_data_takes_results_and_weighs_nothing(
    worlds: Worlds, steps: list[int]
) -> None:
    """Its own last steps count once; then the others' rounds pass without it, to their end."""
    ranks = _run(worlds, steps=steps)
    takes_part = [one["weights"][0][0] > 0 for one in ranks[3]["rounds"]]
    assert takes_part == [bool(steps[0])] + [False] * (len(takes_part) - 1)
    assert len(takes_part) >= 2
    assert [rank["steps"] for rank in ranks] == [steps[0]] * 2 + [steps[1]] * 2
    assert len({rank["end"]["masters"] for rank in ranks}) == 1


@pytest.mark.extended(
    "an end by time is tested later in the training, too",
    held_by=[
        "local_sgd/process/test_megatron_by_time.py::test_a_replica_without_data_takes_results_and_weighs_nothing",
    ],
)
def test_data_that_end_in_the_warm_up_end_the_training(worlds: Worlds) -> None:
    """Replicas are equal there: no round follows."""
    ranks = _run(worlds, config={"local_sgd_warmup_steps": 3}, steps=[2, 2])
    assert [rank["rounds"] for rank in ranks] == [[]] * 4
    assert len({rank["end"]["masters"] for rank in ranks}) == 1


@pytest.mark.extended(
    "steps that a scaler leaves out are counted by the same code in rounds by steps",
    held_by=[
        "local_sgd/process/test_megatron.py::test_a_step_that_a_loss_scaler_leaves_out_counts",
        "local_sgd/process/test_megatron_by_time.py::test_a_replica_without_data_takes_results_and_weighs_nothing",
    ],
)
def test_a_step_that_a_loss_scaler_leaves_out_weighs_nothing(worlds: Worlds) -> None:
    """All ranks of its replica count one step less, and a replica of such steps alone is idle."""
    given: dict[str, Any] = {"setup": {"precision": "fp16"}, "tau": NEVER}
    several = _run(worlds, steps=[6, 4], spoiled=[1, 1], **given)
    assert [one["rounds"][0]["weights"] for one in several] == [[[6 / 9, 3 / 9]]] * 4
    assert {one["rounds"][0]["at"] for one in several[2:]} == {4}
    alone = _run(worlds, steps=[2, 1], spoiled=[0, 1], **given)
    assert [one["rounds"][0]["weights"] for one in alone] == [[[1.0, 0.0]]] * 4


@pytest.mark.parametrize("drop_in", usual([False, True], False, more=MORE))
def test_replicas_save_together_after_a_round(
    worlds: Worlds, tmp_path: Path, *, drop_in: bool
) -> None:
    """The checkpoint counts rounds; each replica has its own state, steps and schedule again."""
    saved = _run(worlds, steps=[30, 6], root=str(tmp_path), saves=2, drop_in=drop_in)
    again = _run(worlds, steps=[31, 7], root=str(tmp_path), drop_in=drop_in)
    for before, after in zip(saved, again, strict=True):
        assert after["start"] == before["saved clock"]["rounds"] == 2
        assert after["loaded"] == before["saved"]
        assert after["clock"] == before["saved clock"]
        assert after["loaded schedule"] == before["saved schedule"]
        assert after["rounds"][0]["round"] == 3
    steps = [one["clock"]["steps"] for one in again]
    assert steps[0] > steps[2]
    assert len({one["end"]["masters"] for one in again}) == 1


@pytest.mark.parametrize("setup", usual([{}, {"tensor": 2}], {"tensor": 2}, more=MORE))
def test_a_training_that_stopped_between_two_rounds_goes_on_as_if_it_had_not(
    worlds: Worlds, tmp_path: Path, setup: dict[str, Any]
) -> None:
    """Bit by bit, from unlike steps: those before the checkpoint weigh in the round after it."""
    given: dict[str, Any] = {"setup": setup, "root": str(tmp_path), "tau": NEVER}
    whole = _run(worlds, steps=[9, 4], saves=[6, 3], **given)
    again = _run(worlds, steps=[9, 4], **given)
    assert [one["clock"]["alone"] for one in again] == [6, 6, 3, 3]
    assert again[0]["rounds"][0]["weights"] == [pytest.approx([9 / 13, 4 / 13])]
    assert [one["end"] for one in again] == [one["end"] for one in whole]
    assert [one["weights"] for one in again] == [one["weights"] for one in whole]


def test_what_replicas_at_unlike_steps_cannot_do_is_refused(worlds: Worlds) -> None:
    """Each call names the setting or itself, and what to do."""
    for one in _run(worlds, "refuse"):
        said = {name: text.split(":")[0] for name, text in one["refused"].items()}
        assert said == {
            "train_step": "use_async=True",
            "sync": "sync",
            "regroup": "regroup",
            "worlds of their own": "use_async=True",
        }
        assert "averages the loss over all replicas" in one["refused"]["train_step"]
