"""Random numbers after a start: the same layout draws on, another one keeps Megatron's rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from house.extended import usual
from megatron_worlds.worlds import Worlds

pytestmark = pytest.mark.train
DROPOUT = {"dropout": 0.2, "tensor": 2}


def test_dropout_goes_on_as_if_nothing_had_happened(worlds: Worlds, tmp_path: Path) -> None:
    """The trackers and default generators go back to their ranks: all losses stay the same."""
    first = worlds.run(world=4, root=tmp_path, until=4, save_at=[2], setup=DROPOUT, seed=7)
    again = worlds.run(world=4, root=tmp_path, until=4, setup=DROPOUT, seed=9)
    for one, other in zip(first, again, strict=True):
        assert other["losses"] == one["losses"][2:]
        assert other["numbers"] == one["numbers"]


MORE = pytest.mark.extended(
    "as many stages as before: the rule is the same",
    held_by=[
        "integrations/megatron/test_random_states.py::test_another_layout_is_seeded_by_the_rule_of_megatron"
    ],
)


@pytest.mark.parametrize("pipeline", usual([1, 2], 1, more=MORE))
def test_another_layout_is_seeded_by_the_rule_of_megatron(
    worlds: Worlds, tmp_path: Path, pipeline: int
) -> None:
    """Ranks of a tensor parallel group draw equal numbers outside parallel regions, not inside."""
    worlds.run(world=4, root=tmp_path, until=1, save_at=[1], setup={"pipeline": 2}, seed=7)
    setup = {"tensor": 2, "pipeline": pipeline}
    draws = [
        [
            rank["drawn"]
            for rank in worlds.run(world=4, root=tmp_path, setup=setup, seed=seed, draw=True)
        ]
        for seed in (8, 9)
    ]
    assert draws[0] == draws[1], "it depends on the checkpoint alone"
    assert _count(draws[0], "default", stage=True) == 1
    assert _count(draws[0], "default") == pipeline
    assert _count(draws[0], "inside") == 2 * pipeline


def _count(draws: list[dict[str, Any]], kind: str, *, stage: bool = False) -> int:
    """Return the number of different draws, of the first stage or of all."""
    return len({tuple(one[kind]) for one in draws if not stage or one["place"][1] == 0})
