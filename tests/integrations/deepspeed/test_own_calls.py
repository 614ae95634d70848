"""A script keeps `engine.save_checkpoint` and `engine.load_checkpoint`; Holdfast does the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints.deepspeed_world import DeepSpeedWorlds

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]


def test_the_own_calls_load_any_tag_into_another_stage_and_world(
    worlds: DeepSpeedWorlds, tmp_path: Path
) -> None:
    """A tag or the newest step comes back exactly, with the script's state; training goes on."""
    common = {"job": "calls", "root": tmp_path}
    saved = worlds.run(stage=1, world=2, steps=3, tags=[None], **common)
    assert saved[0]["loads"] == [{"path": None, "client": None, "digests": {}}]
    assert (tmp_path / "latest").read_text() == "global_step3"
    ranks = worlds.run(stage=3, world=3, steps=1, tags=["global_step2", None], **common)
    for rank in ranks:
        older = rank["loads"][0]
        assert older["path"] == f"{tmp_path}/step_2"
        assert older["client"] == {"epoch": 20}
        assert older["digests"] == saved[0]["saved"][1]
    again = worlds.run(stage=2, world=1, steps=1, tags=[None], **common)
    newest = again[0]["loads"][0]
    assert newest["path"] == f"{tmp_path}/step_4"
    assert newest["client"] == {"epoch": 40}
    assert newest["digests"] == ranks[0]["saved"][0]
    assert again[0]["steps"] == 5


def test_an_old_checkpoint_of_deepspeed_is_loaded_by_deepspeed(
    worlds: DeepSpeedWorlds, tmp_path: Path
) -> None:
    """A directory without a step of Holdfast's is DeepSpeed's own, until the next save."""
    common = {"job": "calls", "root": tmp_path, "stage": 2, "world": 2}
    saved = worlds.run(steps=2, own=True, **common)
    ranks = worlds.run(steps=1, tags=[None], **common)
    for rank in ranks:
        assert rank["loads"][0]["client"]["epoch"] == 20
        assert rank["steps"] == 3
    assert ranks[0]["loads"][0]["digests"] == saved[0]["saved"][-1]
    again = worlds.run(steps=0, tags=[None], **{**common, "world": 3})
    assert again[0]["loads"][0]["digests"] == ranks[0]["saved"][0]
