"""ATorch's two calls write and read local SGD's state beside any checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from checkpoints.flash_world import Worlds
from local_sgd import fsdp2_training
from local_sgd.compared import NESTEROV

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
CONFIG: Final = {"local_sgd_sync_interval": 2, "skip_anomaly": True, "ewma_warmup_steps": 2}
OF_ALL: Final = ("anchors", "momentum")


class Training(Worlds):
    """Worlds that write or read files."""

    script = fsdp2_training.__file__

    def files(self, root: Path, mesh: list[int], **world: Any) -> list[dict[str, Any]]:
        """Return what each rank has before and after."""
        given = {"config": CONFIG, "outer": NESTEROV, "steps": 0, "root": str(root), **world}
        return self.run(
            job="in files", world=mesh[0] * mesh[1], mesh=mesh, kind="fsdp", may_fail=True, **given
        )


@pytest.mark.parametrize("full", [True, False], ids=["whole", "shards"])
def test_files_of_either_kind_load_whatever_the_flag_says(
    training: Training, tmp_path: Path, *, full: bool
) -> None:
    """ATorch's own example saves shards and asks for whole tensors: what lies there is read."""
    saved = training.files(tmp_path, [2, 2], steps=5, full=full)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == (["lsgd_ckpt.pt"] if full else ["lsgd_ckpt_00.pt", "lsgd_ckpt_01.pt"])
    assert [rank["end"] for rank in saved] == [rank["before"] for rank in saved]
    for mesh in ([2, 2], [1, 3]):
        for rank in training.files(tmp_path, mesh, load=True, full=not full):
            assert [rank["end"][key] for key in OF_ALL] == [saved[0]["end"][key] for key in OF_ALL]
            assert rank["clock"] == saved[0]["clock"]


def test_atorch_bug_11_the_detectors_of_every_replica_are_saved(
    training: Training, tmp_path: Path
) -> None:
    """Replica 0's ranks alone write, and every rank knows all detectors."""
    saved = training.files(tmp_path, [2, 2], steps=5, full=False)
    assert {len(one) for one in saved[0]["detectors"].values()} == {2}
    loaded = training.files(tmp_path, [2, 2], load=True, full=False)
    assert [rank["detectors"] for rank in loaded] == [rank["detectors"] for rank in saved]


def test_a_missing_file_is_named(training: Training, tmp_path: Path) -> None:
    """An empty directory says both names; a shard that is missing says how much is there."""
    (found, *_) = training.files(tmp_path, [1, 2], load=True, full=True)
    assert "neither lsgd_ckpt.pt nor lsgd_ckpt_00.pt" in found["error"]
    training.files(tmp_path, [1, 2], steps=1, full=False)
    (tmp_path / "lsgd_ckpt_01.pt").unlink()
    (found,) = training.files(tmp_path, [1, 1], load=True, full=False)
    assert "a file of the save is missing" in found["error"]
