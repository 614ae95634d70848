"""Any stage and any world loads what another one saved: all pairs of three stages and four worlds.

Hashes are of whole tensors that DeepSpeed gathers: masters, both moments, and the weights that the
model computes with.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from checkpoints.deepspeed_world import DeepSpeedWorlds
from house.sample import sampled

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.timeout(600)]
STAGES, WORLDS = (1, 2, 3), (1, 2, 3, 4)
ALL = [(stage, world) for stage in STAGES for world in WORLDS]
SAVERS, LOADERS = sampled(ALL, 3), sampled(ALL[::-1], 2)
"""Three of twelve each time, and two; `make test-matrix` has all 144 pairs."""
STEPS = 3


@pytest.fixture(scope="module")
def saved(
    worlds: DeepSpeedWorlds, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[int, int], tuple[Path, list[dict[str, Any]]]]:
    """Return directory and answers of a world of every stage and size, which trains on after it."""
    root = tmp_path_factory.mktemp("saved")
    found = {}
    for stage, world in SAVERS:
        path = root / f"{stage}_{world}"
        ranks = worlds.run(
            job="save", stage=stage, world=world, root=path, steps=STEPS, groups=True
        )
        found[stage, world] = (path, ranks)
    return found


@pytest.mark.parametrize(("stage", "world"), LOADERS)
def test_every_stage_and_world_loads_every_other_exactly(
    worlds: DeepSpeedWorlds,
    saved: dict[tuple[int, int], tuple[Path, list[dict[str, Any]]]],
    stage: int,
    world: int,
) -> None:
    """Tensors, settings and counters are the saved ones, and the next losses the unbroken run's."""
    ranks = worlds.run(
        job="load",
        stage=stage,
        world=world,
        roots=[path for path, _ in saved.values()],
        groups=True,
    )
    for number, (saver, (_, unbroken)) in enumerate(saved.items()):
        loads = [rank["loads"][number] for rank in ranks]
        for load in loads:
            assert load["start"] == STEPS
            assert load["digests"] == unbroken[0]["digests"], saver
            assert load["settings"] == unbroken[0]["settings"], saver
        losses = [load["losses"] for load in loads]
        wanted = [rank["losses"] for rank in unbroken]
        if saver == (stage, world):
            assert losses == wanted
        pairs = zip(zip(*losses, strict=True), zip(*wanted, strict=True), strict=True)
        for after, before in pairs:
            assert mean(after) == pytest.approx(mean(before), rel=0, abs=1e-6), saver
