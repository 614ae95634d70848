"""Files of DeepSpeed, converted: an engine loads them, and wrong ones are recognised."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints.deepspeed_world import DeepSpeedWorlds
from foreign_checkpoints.conversions import converted
from holdfast.flash.tools.formats import deepspeed_native, deepspeed_universal
from holdfast.flash.tools.formats.foreign import ForeignError
from holdfast.flash.tools.formats.pickles import Pickles
from house.sample import sampled

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
ROUND_ROBIN = {"zero": {"round_robin_gradients": True}}


@pytest.mark.parametrize("stage", sampled([1, 2], 1))
def test_mixed_up_parameters_are_refused(
    worlds: DeepSpeedWorlds, tmp_path: Path, stage: int
) -> None:
    """With round_robin_gradients the files give parameters the elements of others."""
    common = {"job": "calls", "own": True, "steps": 1, **ROUND_ROBIN}
    for world in (1, 2):
        root = tmp_path / f"{world}"
        worlds.run(stage=stage, world=world, root=root, **common)
        with Pickles() as pickles:
            place = str(root / "global_step1")
            if world == 1:
                assert deepspeed_native.read(place, pickles).step == 1
                continue
            for reader in (deepspeed_native.read, deepspeed_universal.read):
                with pytest.raises(ForeignError, match="round_robin_gradients is on"):
                    reader(place, pickles)


def test_a_converted_checkpoint_is_loaded_by_an_engine(
    worlds: DeepSpeedWorlds, tmp_path: Path
) -> None:
    """Masters, moments, scheduler and counters come back; that groups go by number is told."""
    scheduler = {"type": "WarmupLR", "params": {"warmup_num_steps": 4}}
    common = {"groups": True, "scheduler": scheduler}
    root, made = tmp_path / "own", tmp_path / "made"
    saved = worlds.run(job="calls", own=True, steps=2, stage=2, world=2, root=root, **common)
    converted(root / "global_step2", made)
    for rank in worlds.run(job="load", stage=3, world=2, roots=[made], **common):
        load = rank["loads"][0]
        assert load["start"] == 2
        assert load["digests"] == saved[0]["saved"][-1]
        assert load["settings"]["counters"]["global_samples"] == 24
        assert "'last_batch_iteration': 1" in load["settings"]["scheduler"]
        assert any("does not say which parameters" in note for note in load["notes"])
    torch = worlds.run(job="torch", wrapper="ddp", world=1, root=made, steps=0, groups=True)
    assert torch[0]["start"] == 2
