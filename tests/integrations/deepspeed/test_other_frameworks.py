"""A state moves between DeepSpeed and torch's own DDP and FSDP2, and back: fp32, by hash."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from checkpoints.deepspeed_world import DeepSpeedWorlds
from house.extended import usual

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
SPECIAL = {"groups": True, "frozen": True}


def means(ranks: list[list[float]]) -> list[float]:
    """Return the loss of the whole world at each step."""
    return [mean(losses) for losses in zip(*ranks, strict=True)]


def whole(digests: dict[str, str]) -> dict[str, str]:
    """Return the hashes of what both frameworks have: no working copies of masters."""
    return {name: one for name, one in digests.items() if not name.startswith("low.")}


MORE = pytest.mark.extended(
    "the other wrapper of the same test; how they save and load each other is tested without ZeRO",
    held_by=[
        "integrations/deepspeed/test_other_frameworks.py::test_torch_continues_what_deepspeed_saved",
        "flash/process/test_worlds.py::test_every_world_loads_what_every_other_saved",
    ],
)


@pytest.mark.parametrize("wrapper", usual(["ddp", "fsdp"], "ddp", more=MORE))
def test_torch_continues_what_deepspeed_saved(
    worlds: DeepSpeedWorlds, tmp_path: Path, wrapper: str
) -> None:
    """DDP and FSDP2 load ZeRO's masters and moments exactly, and go on as ZeRO would have."""
    for stage in (1, 3):
        root = tmp_path / f"{stage}"
        saved = worlds.run(job="save", stage=stage, world=3, root=root, steps=3, **SPECIAL)
        ranks = worlds.run(job="torch", wrapper=wrapper, world=2, root=root, steps=5, **SPECIAL)
        for rank in ranks:
            assert rank["start"] == 3
            assert rank["loaded"] == whole(saved[0]["digests"])
        after, before = ([rank["losses"] for rank in one] for one in (ranks, saved))
        assert means(after) == pytest.approx(means(before), rel=0, abs=1e-6)


@pytest.mark.parametrize("wrapper", usual(["ddp", "fsdp"], "fsdp", more=MORE))
def test_deepspeed_continues_what_torch_saved(
    worlds: DeepSpeedWorlds, tmp_path: Path, wrapper: str
) -> None:
    """Stages 1 and 3 load a torch checkpoint exactly, without a step before."""
    root = tmp_path / "saved"
    common = {"job": "torch", "wrapper": wrapper, **SPECIAL}
    saved = worlds.run(world=2, root=root, steps=3, save=True, **common)
    unbroken = worlds.run(world=2, root=tmp_path / "none", steps=8, **common)
    for stage in (1, 3):
        ranks: list[dict[str, Any]] = worlds.run(
            job="load", stage=stage, world=3, roots=[root], **SPECIAL
        )
        for rank in ranks:
            assert whole(rank["loads"][0]["digests"]) == saved[0]["digests"]
            assert rank["loads"][0]["settings"]["steps"] == [3.0]
            assert rank["loads"][0]["settings"]["counters"]["global_steps"] == 3
        after = means([rank["loads"][0]["losses"] for rank in ranks])
        before = means([rank["losses"][3:] for rank in unbroken])
        assert after == pytest.approx(before, rel=0, abs=1e-6)
